/* SPDX-License-Identifier: MIT */
/* Part of every test program: QUIRE_ISA chooses the instruction set that it tests. The library reads no environment by itself. */
#include "quire/base.h"

#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void use_environment(void)
{
    if (quire_isa_use_environment() == QUIRE_OK) return;
    fprintf(stderr, "QUIRE_ISA is not the name of an instruction set\n");
    exit(2);
}
