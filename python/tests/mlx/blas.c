/* SPDX-License-Identifier: MIT */
/* MLX's wheel for Linux multiplies with the reference BLAS, 50 times slower than the machine allows. Preloaded, this hands
 * its products of floats to the OpenBLAS that numpy brings (QUIRE_BLAS names the file). For tests; sums come in another order. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void sgemm64(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc);

static sgemm64 *find(void)
{
    const char *path = getenv("QUIRE_BLAS");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void *found = library ? dlsym(library, "scipy_cblas_sgemm64_") : NULL;
    if (!found) {
        fprintf(stderr, "blas.c: QUIRE_BLAS is not numpy's OpenBLAS: %s\n", path ? path : "(not set)");
        abort();
    }
    return (sgemm64 *)(uintptr_t)found;
}

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc)
{
    static sgemm64 *fast; /* a race writes the same value twice */
    if (!fast) fast = find();
    fast(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
