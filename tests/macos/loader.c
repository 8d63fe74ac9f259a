/* SPDX-License-Identifier: MIT */
/*
 * Runs a library for macOS, byte for byte, on Linux with the same processor, for 64-bit ARM under qemu: a small loader for one Mach-O library
 * whose path is in QUIRE_DYLIB. It maps the segments, fills in addresses, and puts the exported functions into a table that trampolines.S, which
 * python/tests/trampolines.py writes, jumps through. system.c stands for the system.
 *
 * It is as strict as it can be: what a Mac would refuse ends the program with a sentence.
 */
#define _GNU_SOURCE
#include "macos.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEGMENT = 0x19, DYLD_INFO = 0x80000022, MAX_SEGMENTS = 8, WRITABLE = 2 };

typedef struct segment {
    uint64_t address, memory, offset, bytes;
    uint32_t protection;
} segment;

static uint8_t *base; /* where address 0 of the library lies */
static const uint8_t *image;
static segment segments[MAX_SEGMENTS];
static uint32_t n_segments;
static uint32_t info[10]; /* offsets and sizes: rebase, bind, weak bind, lazy bind, exports */

void macos_require(bool right, const char *sentence, const char *detail)
{
    if (right) return;
    fprintf(stderr, "macos loader: %s %s\n", sentence, detail);
    abort();
}

static uint64_t uleb(const uint8_t **at)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
}

/* ----------------------------------------------------------------- segments */

static void read_commands(void)
{
    uint32_t n, command, length;
    memcpy(&n, image + 16, 4);
    for (const uint8_t *at = image + 32; n--; at += length) {
        memcpy(&command, at, 4);
        memcpy(&length, at + 4, 4);
        if (command == SEGMENT) {
            macos_require(n_segments < MAX_SEGMENTS, "too many segments", "");
            memcpy(&segments[n_segments], at + 24, 32);
            memcpy(&segments[n_segments].protection, at + 60, 4);
            n_segments++;
        } else if (command == DYLD_INFO) {
            memcpy(info, at + 8, sizeof info);
        }
    }
}

static void map_segments(void)
{
    const segment *last = &segments[n_segments - 1];
    size_t span = last->address + last->memory + 2 * MACOS_PAGE;
    uint8_t *space = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    macos_require(space != MAP_FAILED, "no memory", "");
    base = (uint8_t *)(((uintptr_t)space + MACOS_PAGE - 1) / MACOS_PAGE * MACOS_PAGE);
    for (uint32_t i = 0; i < n_segments; i++)
        memcpy(base + segments[i].address, image + segments[i].offset, segments[i].bytes);
}

static void protect_segments(void)
{
    for (uint32_t i = 0; i < n_segments; i++) {
        size_t bytes = (segments[i].memory + MACOS_PAGE - 1) / MACOS_PAGE * MACOS_PAGE;
        macos_require(!mprotect(base + segments[i].address, bytes, (int)segments[i].protection), "mprotect",
                      "");
    }
    __builtin___clear_cache((char *)base, (char *)base + segments[0].memory);
}

/* ---------------------------------------------------------------- addresses */

typedef struct place {
    uint32_t segment;
    uint64_t offset;
} place;

static uint64_t *slot(place p)
{
    macos_require(p.segment < n_segments && segments[p.segment].protection & WRITABLE &&
                      p.offset + 8 <= segments[p.segment].memory,
                  "an address is filled in outside of what can be written", "");
    return (uint64_t *)(void *)(base + segments[p.segment].address + p.offset);
}

static void rebase(void)
{
    place p = {0};
    for (const uint8_t *at = image + info[0], *end = at + info[1]; at < end;) {
        uint8_t low = *at & 15, operation = *at++ & 0xf0;
        uint64_t times = 0, skip = 0;
        switch (operation) {
        case 0x00: return;
        case 0x10: macos_require(low == 1, "a kind of rebase", ""); break;
        case 0x20: p = (place){low, uleb(&at)}; break;
        case 0x30: p.offset += uleb(&at); break;
        case 0x40: p.offset += 8u * low; break;
        case 0x50: times = low; break;
        case 0x60: times = uleb(&at); break;
        case 0x70: times = 1, skip = uleb(&at); break;
        case 0x80: times = uleb(&at), skip = uleb(&at); break;
        default: macos_require(false, "an operation of rebase", "");
        }
        for (; times--; p.offset += 8 + skip) *slot(p) += (uint64_t)(uintptr_t)base;
    }
}

static void bind(const uint8_t *at, size_t bytes, bool is_lazy)
{
    place p = {0};
    const char *name = "";
    for (const uint8_t *end = at + bytes; at < end;) {
        uint8_t low = *at & 15, operation = *at++ & 0xf0;
        uint64_t times = 0, skip = 0;
        switch (operation) {
        case 0x00:
            if (!is_lazy) return;
            break;
        case 0x10: macos_require(low == 1, "a library other than libSystem", ""); break;
        case 0x40:
            name = (const char *)at;
            at += strlen(name) + 1;
            break;
        case 0x50: macos_require(low == 1, "a kind of bind", name); break;
        case 0x60: macos_require(uleb(&at) == 0, "an addend", name); break;
        case 0x70: p = (place){low, uleb(&at)}; break;
        case 0x80: p.offset += uleb(&at); break;
        case 0x90: times = 1; break;
        case 0xa0: times = 1, skip = uleb(&at); break;
        case 0xb0: times = 1, skip = 8u * low; break;
        case 0xc0: times = uleb(&at), skip = uleb(&at); break;
        default: macos_require(false, "an operation of bind", name);
        }
        for (; times--; p.offset += 8 + skip) *slot(p) = (uint64_t)(uintptr_t)macos_import(name);
    }
}

/* ------------------------------------------------------------------ exports */

static void *find_export(const char *name)
{
    const uint8_t *start = image + info[8], *at = start;
    for (;;) {
        uint64_t n = uleb(&at);
        if (!*name) {
            macos_require(n, "no export", name);
            uint64_t flags = uleb(&at), address = uleb(&at);
            macos_require(flags == 0, "a kind of export", name);
            return base + address;
        }
        at += n;
        const uint8_t *next = NULL;
        for (uint8_t edges = *at++; edges && !next; edges--) {
            size_t length = strlen((const char *)at);
            bool fits = strncmp((const char *)at, name, length) == 0;
            at += length + 1;
            uint64_t child = uleb(&at);
            if (fits) next = start + child, name += length;
        }
        macos_require(next, "no export", name);
        at = next;
    }
}

/* --------------------------------------------------------------------- load */

/* Before the constructors of tests, which call the library. */
__attribute__((constructor(101))) static void load(void)
{
    const char *path = getenv("QUIRE_DYLIB");
    struct stat s;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    macos_require(fd >= 0 && !fstat(fd, &s), "QUIRE_DYLIB cannot be opened", "");
    image = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    macos_require(image != MAP_FAILED, "QUIRE_DYLIB cannot be read", "");
    close(fd);
    read_commands();
    map_segments();
    rebase();
    bind(image + info[2], info[3], false);
    bind(image + info[6], info[7], true);
    protect_segments();
    for (size_t i = 0; macos_names[i]; i++) {
        char name[128];
        snprintf(name, sizeof name, "_%s", macos_names[i]);
        macos_table[i] = find_export(name);
    }
}
