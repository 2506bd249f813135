"""native/abi/page.h, limits/pages.py and limits/compute.py describe the same bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support import GIB, REPOSITORY
from xpu_runtime.limits import compute, pages, usage_page

#: Prints numbers of the header and of a page, one a line.
PROGRAM = r"""
#include "abi/page.h"
#include <stddef.h>
#include <stdio.h>
int main(int argc, char **argv) {
    struct xpu_quota page;
    FILE *file = fopen(argv[argc - 1], "rb");
    if (!file || fread(&page, sizeof page, 1, file) != 1)
        return 1;
    const unsigned long long said[] = {NUMBERS};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        printf("%llu\n", said[i]);
    return 0;
}
"""


def test_c_reads_what_python_writes(tmp_path: Path) -> None:
    uuids = ["GPU-00112233-4455-6677-8899-aabbccddeeff", "MIG-00112233-4455-6677-8899-aabbccddee07"]
    entries = (
        pages.Entry(uuids[0], 4 * GIB, cores=100, sched="weight", priority="high"),
        pages.Entry(uuids[1], None, is_partition=True, cores=30, sched="burst", priority="low"),
    )
    pages.create(str(tmp_path), "c1", entries)
    second = compute._LIMITS_AT + compute._LIMIT_WORDS
    expected = {
        "page.abi": pages.ABI,
        "XPU_ABI": pages.ABI,
        "page.device_count": 2,
        "page.slot_count": pages.SLOTS,
        "page.usage_size": (tmp_path / "usage").stat().st_size,
        "page.limits[0].memory": 4 * GIB,
        "page.limits[1].memory": pages.NO_LIMIT,
        "page.limits[0].cores": 10000,
        "page.limits[1].cores": 3000,
        "XPU_WHOLE": compute.WHOLE,
        "page.limits[1].adjusted": 0,
        "page.limits[0].policy": 0x202,
        "XPU_WEIGHT | XPU_HIGH << 8": 0x202,
        "page.limits[1].policy": 0x101,
        "XPU_BURST | XPU_LOW << 8": 0x101,
        "XPU_FIXED | XPU_NORMAL << 8": 0,
        "page.devices[1].uuid[15]": 7,
        "page.devices[0].mig": 0,
        "page.devices[1].mig": 1,
        "sizeof(struct xpu_slot)": pages.SLOT_SIZE,
        "sizeof(struct xpu_slot_device)": pages.SLOT_DEVICE_SIZE,
        "XPU_QUOTA_SIZE": pages.QUOTA_SIZE,
        "XPU_QUOTA_FIXED": pages.FIXED,
        "offsetof(struct xpu_quota, devices)": pages.DEVICES_AT,
        "sizeof(struct xpu_quota_device)": pages.DEVICE_SIZE,
        "offsetof(struct xpu_quota, limits)": pages.FIXED,
        "sizeof(struct xpu_quota_limit)": pages.LIMIT_SIZE,
        "XPU_USAGE_HEADER": pages.USAGE_HEADER,
        "offsetof(struct xpu_slot, name)": 8,
        "offsetof(struct xpu_slot_device, used)": 0,
        "offsetof(struct xpu_slot_device, kinds)": usage_page._KINDS_AT,
        "offsetof(struct xpu_slot_device, exported)": usage_page._EXPORTED_AT,
        "offsetof(struct xpu_slot, imports)": usage_page._IMPORTS_AT,
        "XPU_KIND_RESERVED": len(usage_page.KINDS),
        "XPU_DEVICES": pages.MAX_DEVICES,
        "offsetof(struct xpu_usage, compute)": pages.COMPUTE_AT,
        "sizeof(struct xpu_usage_compute)": pages.COMPUTE_SIZE,
        "offsetof(struct xpu_usage_compute, used)": pages.COMPUTE_WORDS[0],
        "offsetof(struct xpu_usage_compute, waits)": pages.COMPUTE_WORDS[1],
        "offsetof(struct xpu_usage_compute, guesses)": pages.COMPUTE_WORDS[2],
        "offsetof(struct xpu_usage_compute, held)": pages.COMPUTE_WORDS[3],
        "offsetof(struct xpu_usage_compute, paid)": pages.COMPUTE_WORDS[4],
        "offsetof(struct xpu_quota, limits[1].adjusted)": 8 * (second + compute._ADJUSTED),
        "offsetof(struct xpu_quota, limits[1].cores)": 8 * (second + compute._CORES),
        "offsetof(struct xpu_quota, limits[1].policy)": 8 * (second + compute._POLICY),
        "XPU_ADJUSTED_ROUND_SHIFT": compute.ROUND_SHIFT,
        "XPU_AGENT_LOST_MS": 1000 * compute.LOST_S,
    }
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(PROGRAM.replace("NUMBERS", ", ".join(expected)))
    subprocess.run(["gcc", "-std=c11", f"-I{REPOSITORY}/native", "-o", program, source], check=True)
    said = subprocess.run([program, tmp_path / "quota"], check=True, capture_output=True, text=True).stdout
    assert dict(zip(expected, map(int, said.split()), strict=True)) == expected
