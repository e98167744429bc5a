// error: combine: at most one part may be a sink
#include <lanewise/variants.hpp>
#ifdef CONTROL
lanewise::combine both{lanewise::sink{}, lanewise::softcap{30.f}};
#else
lanewise::combine both{lanewise::sink{}, lanewise::sink{}};
#endif
