#!/usr/bin/env python3
"""Each rule of lint.py finds what it is for in a small tree that breaks it, and is silent once that is mended."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import lint  # noqa: E402

# rule -> (files of a sound tree, files that break the rule when laid over it)
CASES = {
    "sources": [
        ({"tests/meson.build": "executable('x', 'sub/x.cpp')", "tests/sub/x.cpp": ""}, {"tests/sub/y.cpp": ""}),
        ({"tests/meson.build": "['x_test', 'main.cpp']", "tests/x_test.cpp": ""}, {"tests/y_test.cpp": ""}),
        ({"bench/meson.build": "['x.cu']", "bench/x.cu": ""}, {"bench/meson.build": "# 'x.cu'"}),
        ({"tests/meson.build": ""}, {"tests/meson.build": "run_command('find', '.')"}),
    ],
    "linkage": [({"tests/meson.build": "static_library('a')"}, {"tests/meson.build": "library('a')"})],
    "headers": [
        ({"tests/compile/meson.build": "'cpu/a.hpp'", "include/lanewise/cpu/a.hpp": ""},
         {"include/lanewise/cpu/b.hpp": ""}),
    ],
    "includes": [
        ({f"include/lanewise/{path}": f'#include "{good}"'}, {f"include/lanewise/{path}": f'#include "{bad}"'})
        for path, good, bad in [
            ("cpu/forward.hpp", "../tensor.hpp", "../cuda/device.hpp"),
            ("cuda/device.hpp", "../status.hpp", "../cpu/forward.hpp"),
            ("cuda/instruction/mma.cuh", "../lane_map.hpp", "../tile/gemm.cuh"),
            ("cuda/tile/gemm.cuh", "../instruction/mma.cuh", "../sm80/forward.cuh"),
            ("cuda/sm80/forward.cuh", "../tile/gemm.cuh", "../sm90/forward.cuh"),
            ("cuda/sm90/forward.cuh", "../launch.cuh", "../../attention.cuh"),
            ("cuda/launch.cuh", "tile/gemm.cuh", "sm90/forward.cuh"),
            ("attention.cuh", "cuda/sm90/forward.cuh", "cpu/forward.hpp"),
            ("attention.hpp", "variant.hpp", "cpu/forward.hpp"),
            ("attention_cpu.hpp", "cpu/forward.hpp", "cuda/device.hpp"),
            ("variants/window.hpp", "../variant.hpp", "../attention_cpu.hpp"),
            ("cpu/forward.hpp", "tile.hpp", "../../../examples/common/safetensors.hpp"),
        ]
    ],
    "line_ends": [({"docs/a.md": "a\n"}, {"docs/a.md": "a\r\n"}), ({".ci/run": "a\n"}, {".ci/run": "a\r\n"})],
    "ordering": [
        ({"include/lanewise/cuda/a.cuh": f"// in order of tickets\n{add}"}, {"include/lanewise/cuda/a.cuh": add})
        for add in ["atomicAdd(p, x);", 'asm("red.global.add.f32");', 'asm("cp.reduce.async.bulk");',
                    "std::atomic_ref<float>(x).fetch_add(1);"]
    ],
    "leftovers": [({"docs/a.md": "done"}, {"docs/a.md": "TO" + "DO"}), ({"a.md": ""}, {"a.md": "FIX" + "ME: later"})],
    "macros": [
        ({"include/lanewise/config.hpp": "#define LANEWISE_VERSION_MAJOR 0"}, {"include/lanewise/config.hpp": "#define MAX 0"}),
        ({"include/lanewise/cuda/instruction/wgmma.cuh": "#define N 0\n#undef N"},
         {"include/lanewise/cuda/instruction/wgmma.cuh": "#define N 0"}),
    ],
    "links": [
        ({"README.md": "[a](docs/a.md) [b](https://example.org/x)", "docs/a.md": ""}, {"README.md": "[a](docs/b.md)"}),
        ({"docs/a.md": "# One `x` two\n[a](#one-x-two)"}, {"docs/a.md": "# One\n[a](#two)"}),
    ],
    "length": [({"tests/a.cpp": "\n" * 700}, {"tests/a.cpp": "\n" * 701})],
    "readme": [
        ({"README.md": "```cpp\nint x;\n```\n", "examples/first_attention/main.cpp": "int x;\n"}, {"README.md": "```cpp\nint y;\n```\n"}),
    ],
}


class Lint(unittest.TestCase):
    def test_every_rule_has_a_case(self):
        self.assertEqual(set(CASES), set(lint.RULES))

    def test_rules(self):
        for name, cases in CASES.items():
            for sound, broken in cases:
                with self.subTest(name, broken=broken), tempfile.TemporaryDirectory() as folder:
                    root = Path(folder)
                    self.lay(root, sound)
                    self.assertEqual(list(lint.RULES[name](root)), [])
                    self.lay(root, broken)
                    self.assertEqual(len(list(lint.RULES[name](root))), 1)

    @staticmethod
    def lay(root: Path, tree: dict[str, str]):
        for path, text in tree.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(text.encode())


if __name__ == "__main__":
    unittest.main()
