// The engine's bf16_split forward, an instance a head dim and variant.
#include "engine_instance.hpp"

namespace parity {

template lanewise::status forward_of<lanewise::precision::bf16_split>(problem const&, outputs&, lanewise::on_cpu,
                                                                      any_mask const&);
template lanewise::status forward_of<lanewise::precision::bf16_split>(problem const&, outputs&, lanewise::on_cpu,
                                                                      any_variant const&);

}  // namespace parity
