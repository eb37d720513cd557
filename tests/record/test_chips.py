"""The table of GPU models against the datasheets, and the names that it must not take for another's."""

from labkit.record.chips import CHIPS, DEVICES, find_gpu

# name as the driver prints it: dense bf16 and fp8 TFLOP/s, GB/s of NVLink one way. From the datasheets by hand:
# H100 SXM prints 1,979 and 3,958 "with sparsity", and NVLink 900 GB/s both ways.
FACTS = {
    "NVIDIA A100-SXM4-80GB": (312, 0, 300),
    "NVIDIA A100-SXM4-40GB": (312, 0, 300),
    "NVIDIA A100 80GB PCIe": (312, 0, 300),
    "NVIDIA A100-PCIE-40GB": (312, 0, 300),
    "NVIDIA H100 80GB HBM3": (989, 1979, 450),
    "NVIDIA H100 PCIe": (756, 1513, 300),
    "NVIDIA H200": (989, 1979, 450),
    "NVIDIA B200": (2250, 4500, 900),
    "NVIDIA L40S": (362, 733, 0),
    "NVIDIA GeForce RTX 4090": (165.2, 330.3, 0),
}


def test_table_against_the_datasheets():
    found = {name: find_gpu(name) for name in FACTS}
    assert {name: (chip.tflops, chip.fp8_tflops, chip.nvlink) for name, chip in found.items()} == FACTS
    assert set(found.values()) == {CHIPS[name] for name in DEVICES.values()}, "a row that is not in this test"


NEAR = ("H100 NVL", "H200 NVL", "GH200 480GB", "GB200", "H100 80GB HBM3 MIG 1g.10gb", "H100 80GB HBM3 MIG", "L40")
NEAR += ("H800", "GeForce RTX 4090 Laptop GPU", "GeForce RTX 4090 D", "A100-SXM-64GB")


def test_a_near_miss_is_unknown_not_a_guess():
    names = [*(f"NVIDIA {chip}" for chip in NEAR), "Tesla T4", "AMD Instinct MI300X", "cpu", ""]
    assert [find_gpu(name) for name in names] == [None] * len(names)


def test_blackwells_alone_have_fp4_units():
    """Boards of eight: 72 PFLOP/s dense with B200, 105 with B300."""
    fp4 = {name: chip.fp4_tflops for name, chip in CHIPS.items() if chip.fp4_tflops}
    assert fp4 == {"gb200": 9800, "b200": 72_000 / 8, "b300": 105_000 / 8}
