"""native/abi/page.h, limits/pages.py and limits/compute.py describe the same bytes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support import GIB, REPOSITORY
from xpu_runtime.limits import compute, pages, usage_page

#: Prints what the header says, as JSON.
PROGRAM = r"""
#include "abi/page.h"
#include <stddef.h>
#include <stdio.h>
#define SAY(name, value) printf("%s\"%s\": %llu", first++ ? ", " : "{", name, (unsigned long long)(value))
int main(int argc, char **argv) {
    int first = 0;
    struct xpu_quota page;
    FILE *file = fopen(argv[argc - 1], "rb");
    if (!file || fread(&page, sizeof page, 1, file) != 1)
        return 1;
    SAY("abi", page.abi == XPU_ABI);
    SAY("devices", page.device_count);
    SAY("slots", page.slot_count);
    SAY("usage", page.usage_size);
    SAY("first", page.limits[0].memory);
    SAY("second", page.limits[1].memory);
    SAY("first cap", page.limits[0].cores);
    SAY("second cap", page.limits[1].cores);
    SAY("whole", XPU_WHOLE);
    SAY("adjusted", page.limits[1].adjusted);
    SAY("first policy", page.limits[0].policy);
    SAY("weight and high", XPU_WEIGHT | XPU_HIGH << 8);
    SAY("second policy", page.limits[1].policy);
    SAY("burst and low", XPU_BURST | XPU_LOW << 8);
    SAY("fixed and normal", XPU_FIXED | XPU_NORMAL << 8);
    SAY("uuid", page.devices[1].uuid[15]);
    SAY("gpu", page.devices[0].mig);
    SAY("mig", page.devices[1].mig);
    SAY("slot", sizeof(struct xpu_slot));
    SAY("slot device", sizeof(struct xpu_slot_device));
    SAY("quota size", XPU_QUOTA_SIZE);
    SAY("fixed", XPU_QUOTA_FIXED);
    SAY("devices at", offsetof(struct xpu_quota, devices));
    SAY("device", sizeof(struct xpu_quota_device));
    SAY("limits at", offsetof(struct xpu_quota, limits));
    SAY("limit", sizeof(struct xpu_quota_limit));
    SAY("header", XPU_USAGE_HEADER);
    SAY("name at", offsetof(struct xpu_slot, name));
    SAY("used at", offsetof(struct xpu_slot_device, used));
    SAY("kinds at", offsetof(struct xpu_slot_device, kinds));
    SAY("exported at", offsetof(struct xpu_slot_device, exported));
    SAY("imports at", offsetof(struct xpu_slot, imports));
    SAY("kinds", XPU_KIND_RESERVED);
    SAY("max", XPU_DEVICES);
    SAY("compute at", offsetof(struct xpu_usage, compute));
    SAY("compute", sizeof(struct xpu_usage_compute));
    SAY("device time at", offsetof(struct xpu_usage_compute, used));
    SAY("waits at", offsetof(struct xpu_usage_compute, waits));
    SAY("guesses at", offsetof(struct xpu_usage_compute, guesses));
    SAY("held at", offsetof(struct xpu_usage_compute, held));
    SAY("paid at", offsetof(struct xpu_usage_compute, paid));
    SAY("adjusted at", offsetof(struct xpu_quota, limits[1].adjusted));
    SAY("cores at", offsetof(struct xpu_quota, limits[1].cores));
    SAY("policy at", offsetof(struct xpu_quota, limits[1].policy));
    SAY("round shift", XPU_ADJUSTED_ROUND_SHIFT);
    SAY("agent lost", XPU_AGENT_LOST_MS);
    puts("}");
    return 0;
}
"""


@pytest.fixture(scope="module")
def printer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(PROGRAM)
    source, include = folder / "layout.c", f"-I{REPOSITORY}/native"
    subprocess.run(["gcc", "-std=c11", include, "-o", folder / "layout", source], check=True)
    return folder / "layout"


def test_c_reads_what_python_writes(printer: Path, tmp_path: Path) -> None:
    uuids = ["GPU-00112233-4455-6677-8899-aabbccddeeff", "MIG-00112233-4455-6677-8899-aabbccddee07"]
    entries = (
        pages.Entry(uuids[0], 4 * GIB, cores=100, sched="weight", priority="high"),
        pages.Entry(uuids[1], None, is_partition=True, cores=30, sched="burst", priority="low"),
    )
    pages.create(str(tmp_path), "c1", entries)
    said = json.loads(subprocess.run([printer, tmp_path / "quota"], check=True, capture_output=True).stdout)
    second = compute._LIMITS_AT + compute._LIMIT_WORDS
    assert said == {
        "abi": 1,
        "devices": 2,
        "slots": pages.SLOTS,
        "usage": (tmp_path / "usage").stat().st_size,
        "first": 4 * GIB,
        "second": pages.NO_LIMIT,
        "first cap": 10000,
        "second cap": 3000,
        "whole": compute.WHOLE,
        "adjusted": 0,
        "first policy": 0x202,
        "weight and high": 0x202,
        "second policy": 0x101,
        "burst and low": 0x101,
        "fixed and normal": 0,
        "uuid": 7,
        "gpu": 0,
        "mig": 1,
        "slot": pages.SLOT_SIZE,
        "slot device": pages.SLOT_DEVICE_SIZE,
        "quota size": pages.QUOTA_SIZE,
        "fixed": pages._FIXED,
        "devices at": pages._DEVICES_AT,
        "device": pages._DEVICE_SIZE,
        "limits at": pages._FIXED,
        "limit": pages._LIMIT_SIZE,
        "header": pages.USAGE_HEADER,
        "name at": 8,
        "used at": 0,
        "kinds at": usage_page._KINDS_AT,
        "exported at": usage_page._EXPORTED_AT,
        "imports at": usage_page._IMPORTS_AT,
        "kinds": len(usage_page.KINDS),
        "max": pages.MAX_DEVICES,
        "compute at": pages.COMPUTE_AT,
        "compute": pages.COMPUTE_SIZE,
        "device time at": pages.COMPUTE_WORDS[0],
        "waits at": pages.COMPUTE_WORDS[1],
        "guesses at": pages.COMPUTE_WORDS[2],
        "held at": pages.COMPUTE_WORDS[3],
        "paid at": pages.COMPUTE_WORDS[4],
        "adjusted at": 8 * (second + compute._ADJUSTED),
        "cores at": 8 * (second + compute._CORES),
        "policy at": 8 * (second + compute._POLICY),
        "round shift": compute.ROUND_SHIFT,
        "agent lost": 1000 * compute.LOST_S,
    }
