// Adapters in the layouts that other programs read.
//
//   PEFT      adapter_config.json, and adapter_model.safetensors with base_model.model.MODULE.lora_A.weight,
//             .lora_B.weight, or .lokr_w1, .lokr_w2, .lokr_w2_a, .lokr_w2_b
//   LyCORIS   a file of lycoris_MODULE.lokr_w1 ... with the dots of MODULE as underscores, and .alpha beside them; LoKR
//             alone, since for LoRA PEFT's is the layout that is read everywhere
//
// Tensors are written in f32 as they are trained, so that what is read back computes the same bits.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "../common/safetensors.hpp"
#include "weight_layout.hpp"

namespace trainer {

/// The part of a flat array that is p's. Throws std::length_error where p does not lie in it.
template <class T>
std::span<T> part_of(std::span<T> array, parameter const& p) {
  if (p.offset < 0 || p.count < 0 || std::uint64_t(p.offset) + std::uint64_t(p.count) > array.size())
    throw std::length_error(p.name + ": elements " + std::to_string(p.offset) + " to " +
                            std::to_string(p.offset + p.count) + " of an array of " + std::to_string(array.size()));
  return array.subspan(std::size_t(p.offset), std::size_t(p.count));
}

/// array[p] = the elements of t, converted to f32. Throws std::length_error where p does not lie in the array or the
/// shapes differ, std::runtime_error where t holds no floating-point numbers; the array is then as it was.
void copy_tensor(safetensors::tensor const& t, parameter const& p, std::span<float> array);

/// The tensors of adapter_model.safetensors. trained: the array of layout.adapters().
safetensors::file peft_tensors(weight_layout const& layout, std::span<float const> trained);
/// adapter_config.json. base: the directory of the frozen model, as it should be found again; task: PEFT's name of what
/// it is for. Empty ones are null there.
std::string peft_config(weight_layout const& layout, std::string const& base, std::string const& task);
/// The tensors of LyCORIS's file; of a LoKR layout.
safetensors::file lycoris_tensors(weight_layout const& layout, std::span<float const> trained);

/// The adapter that a PEFT directory describes: kind, dim, alpha, factor and sites; storage is left as it is by
/// default. Throws bad-base, naming the file and what this program would compute otherwise.
adaptation read_peft_config(std::filesystem::path const& directory, std::span<projection_site const> sites);
/// Fills the array of layout.adapters() from adapter_model.safetensors. Throws bad-base where a tensor is missing, has
/// another shape, or is not part of the layout.
void read_peft_tensors(std::filesystem::path const& directory, weight_layout const& layout, std::span<float> trained);

}  // namespace trainer
