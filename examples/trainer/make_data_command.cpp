#include "make_data_command.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "audio/album.hpp"
#include "error.hpp"
#include "option_checks.hpp"
#include "run_directory.hpp"

namespace trainer {

void add_make_data_options(CLI::App& app, make_data_options& o) {
  app.add_option("--preset", o.preset, "albumF: eight songs of one to two minutes; albumI: twelve of up to 240 s")
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of everything in them")->capture_default_str()->check(beyond_64_bits);
  app.add_option("--out", o.out, "directory for the songs. Default: the preset's name");
  app.add_option("--min-free-gb", o.min_free_gb,
                 "stop with disk-low rather than leave less than so many 10^9 bytes free")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

int run_make_data(make_data_options const& o) {
  album const& a = album_named(o.preset);
  std::filesystem::path const path = o.out.empty() ? a.name : o.out;
  if (std::filesystem::exists(path) && !std::filesystem::is_empty(path))
    throw output_exists(path.string() + " is not empty: choose another --out");
  run_directory const directory(path, o.min_free_gb);
  std::int64_t seconds = 0, bytes = 0;
  for (std::int64_t i = 0; i < a.songs; ++i) {
    song const s = make_song(a, std::uint64_t(o.seed), i);
    char name[32];
    std::snprintf(name, sizeof name, "song%02d", int(i + 1));
    std::string const wav = wav_bytes(s.music, sample_format::pcm16);
    directory.write(std::string(name) + ".wav", wav);
    directory.write(std::string(name) + ".txt", s.caption + "\n");
    seconds += s.music.frames() / s.music.rate;
    bytes += std::int64_t(wav.size());
  }
  std::printf("%s, seed %lld: %lld songs, %lld s, %.1f MB in %s\n", a.name, static_cast<long long>(o.seed),
              static_cast<long long>(a.songs), static_cast<long long>(seconds), double(bytes) / 1e6, path.c_str());
  return 0;
}

}  // namespace trainer
