/* SPDX-License-Identifier: MIT */
/* A program that loads such a libggml-base. */
#include <stdio.h>

const char *ggml_version(void);

int main(void)
{
    puts(ggml_version());
    return 0;
}
