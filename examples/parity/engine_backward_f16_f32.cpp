// The engine's f16 backward with f32 gradients, an instance a head dim and variant.
#include "engine_instance.hpp"

namespace parity {

template lanewise::status backward_of<lanewise::precision::f16, lanewise::gradient_type::f32>(problem const&, outputs&,
                                                                                              lanewise::on_cpu,
                                                                                              any_mask const&);
template lanewise::status backward_of<lanewise::precision::f16, lanewise::gradient_type::f32>(problem const&, outputs&,
                                                                                              lanewise::on_cpu,
                                                                                              any_variant const&);

}  // namespace parity
