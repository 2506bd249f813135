"""The cards that can be simulated, and the MIG profiles of those with MIG."""

from __future__ import annotations

from xpu_runtime.value import Value

MIB = 1 << 20

#: The cards' settings, from their data sheets and nvidia-smi. The keys are the driver's (driver/config.c).
MODELS: dict[str, dict[str, int | str]] = {
    "T4": {
        "name": "Tesla T4",
        "memory": 15360 * MIB,
        "pci_device_id": 0x1EB810DE,
        "pci_subsystem_id": 0x12A210DE,
        "cc_major": 7,
        "cc_minor": 5,
        "architecture": 6,
        "brand": 2,
        "sm_count": 40,
        "ecc": 1,
        "power_idle_mw": 9000,
        "power_limit_mw": 70000,
        "sm_clock_mhz": 1590,
        "memory_clock_mhz": 5001,
        "memory_bus_bits": 256,
        "l2_bytes": 4 * MIB,
        "vbios": "90.04.A7.00.01",
    },
    "A100-SXM4-80GB": {
        "name": "NVIDIA A100-SXM4-80GB",
        "memory": 81920 * MIB,
        "mig_capable": 1,
        "pci_device_id": 0x20B210DE,
        "pci_subsystem_id": 0x147F10DE,
        "cc_major": 8,
        "cc_minor": 0,
        "architecture": 7,
        "brand": 14,
        "sm_count": 108,
        "ecc": 1,
        "power_idle_mw": 60000,
        "power_limit_mw": 400000,
        "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1593,
        "memory_bus_bits": 5120,
        "l2_bytes": 40 * MIB,
        "vbios": "92.00.36.00.10",
    },
    "H100-80GB-HBM3": {
        "name": "NVIDIA H100 80GB HBM3",
        "memory": 81559 * MIB,
        "mig_capable": 1,
        "pci_device_id": 0x233010DE,
        "pci_subsystem_id": 0x16C110DE,
        "cc_major": 9,
        "cc_minor": 0,
        "architecture": 9,
        "brand": 14,
        "sm_count": 132,
        "ecc": 1,
        "power_idle_mw": 70000,
        "power_limit_mw": 700000,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "memory_bus_bits": 5120,
        "l2_bytes": 50 * MIB,
        "vbios": "96.00.74.00.09",
    },
    "H200": {
        "name": "NVIDIA H200",
        "memory": 143771 * MIB,
        "reserved": 615 * MIB,
        "mig_capable": 1,
        "pci_device_id": 0x233510DE,
        "pci_subsystem_id": 0x18BE10DE,
        "cc_major": 9,
        "cc_minor": 0,
        "architecture": 9,
        "brand": 14,
        "sm_count": 132,
        "ecc": 1,
        "power_idle_mw": 75000,
        "power_limit_mw": 700000,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "memory_bus_bits": 6144,
        "l2_bytes": 60 * MIB,
        "vbios": "96.00.A4.00.07",
    },
}


class Profile(Value):
    """A MIG profile: its compute slices (of 7), memory slices (of 8), memory, and engines."""

    slices: int
    memory_slices: int
    memory_mib: int
    sm_count: int
    copy_engines: int
    decoders: int
    jpegs: int
    ofas: int


#: By model, from the MIG user guide's tables and the output of `nvidia-smi` for such devices.
PROFILES = {
    "A100-SXM4-80GB": {
        "1g.10gb": Profile(1, 1, 9728, 14, 1, 0, 0, 0),
        "1g.20gb": Profile(1, 2, 19968, 14, 1, 1, 0, 0),
        "2g.20gb": Profile(2, 2, 19968, 28, 2, 1, 0, 0),
        "3g.40gb": Profile(3, 4, 40192, 42, 3, 2, 0, 0),
        "4g.40gb": Profile(4, 4, 40192, 56, 4, 2, 0, 0),
        "7g.80gb": Profile(7, 8, 80640, 98, 7, 5, 1, 1),
    },
}
#: The first GPU instance id that the driver gives a profile with that many slices.
FIRST_INSTANCE = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}
