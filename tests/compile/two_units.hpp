// Every header in both files: what is not inline there is a duplicate symbol here.
#pragma once

#include <lanewise/attention_cpu.hpp>
#include <lanewise/memory/arena.hpp>
#include <lanewise/reference.hpp>
#include <lanewise/variants.hpp>

inline constexpr lanewise::config shared_config{.head_dim = 8};

/// o of one query over two keys, computed in the other file.
float in_other_file(lanewise::view<float const> q, lanewise::view<float const> k);
