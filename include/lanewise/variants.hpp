// Every stock mask and score. docs/masks.md has the table.
#pragma once

#include "variants/alibi.hpp"
#include "variants/bias.hpp"
#include "variants/causal.hpp"
#include "variants/documents.hpp"
#include "variants/key_padding.hpp"
#include "variants/sink.hpp"
#include "variants/softcap.hpp"
#include "variants/window.hpp"
