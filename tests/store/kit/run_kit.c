/* SPDX-License-Identifier: MIT */
/* The command `quire store`, run by tests. */
#define _GNU_SOURCE
#include "store/kit/run_kit.h"

#include "store/kit/store_kit.h"

#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int kit_quire_store(char out[KIT_OUTPUT], const char *format, ...)
{
    char self[1024] = {0}, line[4096], command[6000];
    va_list args;
    KIT_REQUIRE(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snprintf(command, sizeof command, "%s/quire store %s 2>&1 </dev/null", dirname(self), line);
    FILE *f = popen(command, "r");
    KIT_REQUIRE(f);
    size_t n = fread(out, 1, KIT_OUTPUT - 1, f);
    out[n] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}
