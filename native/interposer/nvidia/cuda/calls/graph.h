/*
 * Memory of graphs (CUgraph): nodes that allocate (cuGraphAddMemAllocNode), and captured allocations.
 */
#pragma once

#include "headers/cuda/cuda_api.h"

#include <stdbool.h>

/* Work on the stream becomes part of a graph. */
bool xpu_is_capturing(CUstream stream);
/* A graph of this process has, or may have, an allocating node. */
void xpu_graph_gets_memory(void);
bool xpu_graphs_with_memory(void);
