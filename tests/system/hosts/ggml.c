/* SPDX-License-Identifier: MIT */
/* A libggml-base of a version that nobody knows. */
__attribute__((visibility("default"))) const char *ggml_version(void);

const char *ggml_version(void)
{
    return "0.99.0";
}
