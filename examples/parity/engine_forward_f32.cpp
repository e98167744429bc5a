// The engine's f32 forward, an instance a head dim and variant.
#include "engine_instance.hpp"

namespace parity {

template lanewise::status forward_of<lanewise::precision::f32>(problem const&, outputs&, lanewise::on_cpu,
                                                               any_mask const&);
template lanewise::status forward_of<lanewise::precision::f32>(problem const&, outputs&, lanewise::on_cpu,
                                                               any_variant const&);

}  // namespace parity
