/* SPDX-License-Identifier: MIT */
/* A program with ggml inside, as far as one can see from outside. */
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    puts(getenv("GGML_BACKEND_PATH") ? "ran with the device" : "ran");
    return 0;
}
