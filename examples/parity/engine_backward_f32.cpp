// The engine's f32 backward, an instance a head dim and variant.
#include "engine_instance.hpp"

namespace parity {

template lanewise::status backward_of<lanewise::precision::f32, lanewise::gradient_type::storage>(problem const&,
                                                                                                  outputs&,
                                                                                                  lanewise::on_cpu,
                                                                                                  any_mask const&);
template lanewise::status backward_of<lanewise::precision::f32, lanewise::gradient_type::storage>(problem const&,
                                                                                                  outputs&,
                                                                                                  lanewise::on_cpu,
                                                                                                  any_variant const&);

}  // namespace parity
