// Adds two vectors by the runtime API, as a first CUDA program does; prints "sum: N" with the sum of the result.
#include <cstdio>
#include <vector>

__global__ void add(const float *a, const float *b, float *c, int count) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < count)
        c[i] = a[i] + b[i];
}

static void must(cudaError_t status, const char *what) {
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
        exit(status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver ? 77 : 1);
    }
}

int main() {
    const int count = 50000;
    const size_t bytes = count * sizeof(float);
    std::vector<float> a(count, 1), b(count, 2), c(count);
    float *da, *db, *dc;
    must(cudaMalloc(&da, bytes), "cudaMalloc");
    must(cudaMalloc(&db, bytes), "cudaMalloc");
    must(cudaMalloc(&dc, bytes), "cudaMalloc");
    must(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    must(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    add<<<(count + 255) / 256, 256>>>(da, db, dc, count);
    must(cudaGetLastError(), "launch");
    must(cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    double sum = 0;
    for (float value : c)
        sum += value;
    size_t free_bytes, total;
    must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
    printf("sum: %.0f\ntotal: %zu\n", sum, total);
    must(cudaFree(da), "cudaFree");
    must(cudaFree(db), "cudaFree");
    must(cudaFree(dc), "cudaFree");
    return 0;
}
