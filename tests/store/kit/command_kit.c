/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "store/kit/command_kit.h"

#include <assert.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int kit_quire(char out[KIT_OUTPUT], const char *format, ...)
{
    char self[1024] = {0}, line[4096], command[6000];
    va_list args;
    assert(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    snprintf(command, sizeof command, "%s/quire store %s 2>&1", dirname(self), line);
    FILE *f = popen(command, "r");
    assert(f);
    size_t n = fread(out, 1, KIT_OUTPUT - 1, f);
    out[n] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

void kit_write_text(const char *path, const char *text, uint32_t mode)
{
    FILE *f = fopen(path, "w");
    assert(f);
    fputs(text, f);
    assert(!fclose(f) && !chmod(path, mode));
}

uint32_t kit_mode(const char *path)
{
    struct stat st;
    return stat(path, &st) ? UINT32_MAX : st.st_mode & 07777;
}

static void put32(FILE *f, uint32_t value)
{
    for (int i = 0; i < 4; i++) fputc((int)(value >> 8 * i & 0xff), f);
}

#define LAYERS 3u

static uint32_t position_of(const kit_slot *s, uint32_t cell)
{
    return s->first_position + (s->is_reversed ? s->n_cells - 1 - cell : cell);
}

static int row_byte(const kit_slot *s, int value, uint32_t j)
{
    if (!s->coded) return value;
    if (j < 2) return j ? 0x7e : 0x51;
    return j < s->coded ? value | 1 : 0;
}

void kit_slot_write(const char *path, const kit_slot *s)
{
    uint32_t n = s->n_cells, n_tokens = s->n_tokens ? s->n_tokens : n + 1;
    FILE *f = fopen(path, "wb");
    assert(f);
    put32(f, 0x67677371);
    put32(f, s->version);
    put32(f, n_tokens + 4);
    put32(f, UINT32_MAX);
    put32(f, 1);
    put32(f, n_tokens);
    for (uint32_t i = 0; i < n_tokens; i++) put32(f, i * 3 + s->salt);
    put32(f, 0);
    put32(f, s->n_streams);
    for (uint32_t i = 0; i + 1 < s->n_streams; i++) put32(f, 0);
    put32(f, n);
    for (uint32_t i = 0; i < n; i++) {
        put32(f, position_of(s, i));
        put32(f, 1);
        put32(f, s->has_two_sequences && i >= n / 2);
    }
    put32(f, s->transposed);
    put32(f, LAYERS);
    if (s->version >= 4) put32(f, s->rot_k), put32(f, s->rot_v);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            put32(f, side ? s->v_type ? s->v_type : 8 : s->k_type ? s->k_type : 1);
            if (side && s->transposed) {
                put32(f, 2);
                put32(f, 10);
                for (uint32_t j = 0; j < 10; j++)
                    for (uint32_t i = 0; i < n; i++)
                        fputc((int)(j + position_of(s, i)), f), fputc((int)(l + s->salt), f);
                continue;
            }
            uint32_t row = side ? 34 : 16 + 2 * l;
            put32(f, row);
            put32(f, 0);
            for (uint32_t i = 0; i < n; i++)
                for (uint32_t j = 0; j < row; j++)
                    fputc(row_byte(s, (int)(position_of(s, i) * 31 + j * 7 + l + side * 50 + s->salt), j), f);
        }
    assert(!fclose(f));
}
