// The engine's bf16_split backward with either type of gradient, an instance a head dim and variant.
#include "engine_instance.hpp"

namespace parity {

template lanewise::status backward_of<lanewise::precision::bf16_split, lanewise::gradient_type::storage>(
    problem const&, outputs&, lanewise::on_cpu, any_mask const&);
template lanewise::status backward_of<lanewise::precision::bf16_split, lanewise::gradient_type::storage>(
    problem const&, outputs&, lanewise::on_cpu, any_variant const&);
template lanewise::status backward_of<lanewise::precision::bf16_split, lanewise::gradient_type::f32>(problem const&,
                                                                                                     outputs&,
                                                                                                     lanewise::on_cpu,
                                                                                                     any_mask const&);
template lanewise::status backward_of<lanewise::precision::bf16_split, lanewise::gradient_type::f32>(
    problem const&, outputs&, lanewise::on_cpu, any_variant const&);

}  // namespace parity
