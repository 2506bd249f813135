/*
 * nvidia-smi topo -m: the devices' connections, and the near processors.
 */
#define _GNU_SOURCE
#include "outputs.h"

#include <stdio.h>
#include <string.h>

enum { WORDS = 64, WORD_BITS = 8 * sizeof(unsigned long) };

/* By nvmlGpuTopologyLevel_t, which counts in tens. */
static const char *const ways[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};

static const char *way(nvmlDevice_t one, nvmlDevice_t other) {
    unsigned int level = 0;
    if (nvml.nvmlDeviceGetTopologyCommonAncestor(one, other, &level) != NVML_SUCCESS)
        return "N/A";
    return level / 10 < sizeof ways / sizeof *ways ? ways[level / 10] : "N/A";
}

static bool is_set(const unsigned long *set, unsigned int bit) {
    return bit < WORDS * WORD_BITS && set[bit / WORD_BITS] >> bit % WORD_BITS & 1;
}

/* "0-23,48-71". */
static void print_set(const unsigned long *set) {
    const char *comma = "";
    for (unsigned int bit = 0; bit < WORDS * WORD_BITS; bit++) {
        if (!is_set(set, bit))
            continue;
        unsigned int last = bit;
        while (is_set(set, last + 1))
            last++;
        printf(last > bit ? "%s%u-%u" : "%s%u", comma, bit, last);
        comma = ",";
        bit = last;
    }
    if (!*comma)
        printf("N/A");
}

static unsigned int index_of(nvmlDevice_t device) {
    unsigned int index = 0;
    nvml.nvmlDeviceGetIndex(device, &index);
    return index;
}

void smi_topology(const struct selection *selection) {
    const bool newer = smi_branch >= 535; /* has one column more */
    printf("\t\033[4m");
    for (unsigned int i = 0; i < selection->count; i++)
        printf("GPU%u\t", index_of(selection->devices[i]));
    printf("CPU Affinity\tNUMA Affinity%s\033[0m\n", newer ? "\tGPU NUMA ID" : "");
    for (unsigned int i = 0; i < selection->count; i++) {
        unsigned long cpus[WORDS] = {0}, nodes[WORDS] = {0};
        nvmlDevice_t device = selection->devices[i];
        printf("GPU%u\t", index_of(device));
        for (unsigned int j = 0; j < selection->count; j++)
            printf(i == j ? " %s \t" : "%s\t", i == j ? "X" : way(device, selection->devices[j]));
        nvml.nvmlDeviceGetCpuAffinity(device, WORDS, cpus);
        nvml.nvmlDeviceGetMemoryAffinity(device, WORDS, nodes, 0);
        print_set(cpus);
        printf("\t");
        print_set(nodes);
        printf("%s\n", newer ? "\t\tN/A" : "");
    }
    puts("\nLegend:\n\n"
         "  X    = the device itself\n"
         "  SYS  = over PCIe and between NUMA nodes\n"
         "  NODE = over PCIe and between the host bridges of a NUMA node\n"
         "  PHB  = over PCIe and a host bridge\n"
         "  PXB  = over several PCIe bridges and no host bridge\n"
         "  PIX  = over one PCIe bridge at most\n");
}
