// A CUDA program: cuda-job [info | burn SECONDS MIB | bad-address]. Exit code 3 means that a CUDA call failed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#define OK(call)                                                                                                                             \
    do {                                                                                                                                     \
        cudaError_t error = (call);                                                                                                          \
        if (error != cudaSuccess) {                                                                                                          \
            fprintf(stderr, "%s: %s (%d)\n", #call, cudaGetErrorString(error), (int)error);                                                  \
            return 3;                                                                                                                        \
        }                                                                                                                                    \
    } while (0)

__global__ void compute(float *values) {
    float value = values[threadIdx.x];
    for (int i = 0; i < 200000; i++) value = value * 1.0001f + 0.5f;
    values[threadIdx.x] = value;
}
__global__ void write_far_away(int *values) { values[threadIdx.x + (1ull << 40)] = 1; }

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "info";
    cudaDeviceProp properties;
    OK(cudaGetDeviceProperties(&properties, 0));
    printf("%s\n", properties.name);
    fflush(stdout);
    if (!strcmp(mode, "bad-address")) {
        int *values;
        OK(cudaMalloc(&values, 1024));
        write_far_away<<<1, 32>>>(values);
        OK(cudaDeviceSynchronize());
    } else if (!strcmp(mode, "burn") && argc == 4) {
        float *values;
        OK(cudaMalloc(&values, (size_t)atol(argv[3]) << 20));
        for (time_t end = time(nullptr) + atoi(argv[2]); time(nullptr) < end;) {
            compute<<<properties.multiProcessorCount * 8, 256>>>(values);
            OK(cudaDeviceSynchronize());
        }
    }
    return 0;
}
