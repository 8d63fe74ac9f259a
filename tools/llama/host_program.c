/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* memmem */
#include "llama/host_program.h"

#include "common/child.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ----------------------------------------------------------------------- ELF */

typedef struct image {
    const char *bytes;
    size_t n;
} image;

static bool map_file(image *i, const char *path)
{
    struct stat s;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *bytes = MAP_FAILED;
    if (fd >= 0 && !fstat(fd, &s) && s.st_size > 0)
        bytes = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0) close(fd);
    if (bytes == MAP_FAILED) return false;
    *i = (image){bytes, (size_t)s.st_size};
    return true;
}

static bool is_elf(const image *i)
{
    return i->n >= sizeof(Elf64_Ehdr) && !memcmp(i->bytes, ELFMAG, SELFMAG) &&
           i->bytes[EI_CLASS] == ELFCLASS64;
}

static bool program_header(const image *i, uint32_t index, Elf64_Phdr *out)
{
    Elf64_Ehdr head;
    memcpy(&head, i->bytes, sizeof head);
    if (index >= head.e_phnum || head.e_phentsize != sizeof *out || head.e_phoff > i->n ||
        (i->n - head.e_phoff) / sizeof *out <= index)
        return false;
    memcpy(out, i->bytes + head.e_phoff + index * sizeof *out, sizeof *out);
    return out->p_offset <= i->n && out->p_filesz <= i->n - out->p_offset;
}

/* The loader that the program names; false: it has none, so it is static. */
static bool find_loader(const image *i, char *path)
{
    Elf64_Phdr p;
    for (uint32_t index = 0; program_header(i, index, &p); index++)
        if (p.p_type == PT_INTERP && p.p_filesz > 1 && p.p_filesz < PLACE_SIZE) {
            memcpy(path, i->bytes + p.p_offset, p.p_filesz);
            path[p.p_filesz - 1] = 0;
            return true;
        }
    return false;
}

static bool contains(const image *i, const char *word, size_t n)
{
    return memmem(i->bytes, i->n, word, n);
}

/* Dynamic names lie in a table between zeros, and so does the symbol table of a program that was not stripped. */
static bool has_name(const image *i, const char *name)
{
    char quoted[64];
    size_t n = (size_t)snprintf(quoted, sizeof quoted, "%c%s", 0, name);
    return contains(i, quoted, n + 1);
}

/* ---------------------------------------------------------------- libraries */

/* Those that know of no hardware but the CPU. */
static bool is_wanted(const char *name)
{
    return !strncmp(name, "libggml-base", 12) || !strncmp(name, "libggml-cpu", 11) ||
           !strncmp(name, "libggml.", 8);
}

typedef struct listing {
    host_program *host;
    char line[2 * PLACE_SIZE];
    size_t n;
} listing;

/* "    libggml.so.0 => /usr/lib/libggml.so.0 (0x00007f...)" */
static void take_line(listing *l)
{
    char name[256], path[PLACE_SIZE];
    host_program *h = l->host;
    l->line[l->n] = 0;
    l->n = 0;
    if (sscanf(l->line, " %255s => %4095s", name, path) != 2 || path[0] != '/' || !is_wanted(name)) return;
    if (h->n_libraries < HOST_LIBRARIES) memcpy(h->library[h->n_libraries++], path, sizeof path);
}

static void listen(void *ctx, const char *text, size_t n)
{
    listing *l = ctx;
    for (size_t i = 0; i < n; i++)
        if (text[i] == '\n')
            take_line(l);
        else if (l->n + 1 < sizeof l->line)
            l->line[l->n++] = text[i];
}

/* Asks the loader, which knows its own rules. */
static void list_libraries(host_program *h, const char *loader)
{
    static listing l;
    const char *argv[] = {loader, "--list", h->path, NULL};
    l = (listing){.host = h};
    child run = {.argv = argv, .output = listen, .ctx = &l};
    if (child_run(&run)) h->n_libraries = 0;
}

/* --------------------------------------------------------------------- find */

static bool find_path(char *path, const char *name)
{
    struct stat s;
    if (!strchr(name, '/')) return place_program(path, NULL, name);
    return snprintf(path, PLACE_SIZE, "%s", name) < PLACE_SIZE && !access(path, X_OK) && !stat(path, &s) &&
           S_ISREG(s.st_mode);
}

bool host_program_find(host_program *h, const char *name)
{
    static const char marks[][20] = {"GGML_BACKEND_PATH", "ggml_backend_", "GGML_ASSERT"};
    char loader[PLACE_SIZE] = "";
    image i;
    *h = (host_program){.kind = HOST_UNKNOWN};
    if (!find_path(h->path, name) || !map_file(&i, h->path)) return false;
    if (is_elf(&i)) {
        if (find_loader(&i, loader) && !access(loader, X_OK)) list_libraries(h, loader);
        bool inside = false;
        for (size_t m = 0; m < sizeof marks / sizeof marks[0]; m++)
            inside |= contains(&i, marks[m], strlen(marks[m]));
        if (h->n_libraries)
            h->kind = HOST_SHARED;
        else if (inside && !(*loader && has_name(&i, "ggml_version")))
            h->kind = HOST_STATIC;
    }
    munmap((void *)(size_t)i.bytes, i.n);
    return true;
}

/* ------------------------------------------------------------------- accept */

enum { ACCEPTED = 0, REFUSED = 1, COULD_NOT_TRY = 2 };

static int try_out(const host_program *h, const char *device)
{
    void *(*init)(void);
    unsetenv("QUIRE_CHAIN"); /* another backend may take a while, and hardware */
    for (int i = 0; i < h->n_libraries; i++)
        if (!dlopen(h->library[i], RTLD_NOW | RTLD_GLOBAL)) return COULD_NOT_TRY;
    void *library = dlopen(device, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "quire: not loaded: %s\n", dlerror());
        return REFUSED;
    }
    *(void **)&init = dlsym(library, "ggml_backend_init");
    return init && init() ? ACCEPTED : REFUSED;
}

static void take_sentence(const char *text, char *message, size_t size)
{
    static const char mark[] = "quire: not loaded: ";
    const char *at = strstr(text, mark);
    if (at) snprintf(message, size, "%.*s", (int)strcspn(at + strlen(mark), "\n"), at + strlen(mark));
}

bool host_program_accepts(const host_program *h, const char *device, char *message, size_t size)
{
    char text[4096];
    size_t n = 0;
    ssize_t got;
    int fd[2], status = 0;
    if (h->kind != HOST_SHARED || pipe(fd)) return true;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        dup2(fd[1], 2);
        dup2(fd[1], 1);
        close(fd[0]);
        close(fd[1]);
        _exit(try_out(h, device));
    }
    close(fd[1]);
    while (pid > 0 && n < sizeof text - 1 && (got = read(fd[0], text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    close(fd[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return true;
    /* Whatever went wrong but a refusal is left to the host itself to find out. */
    if (!WIFEXITED(status) || WEXITSTATUS(status) != REFUSED) return true;
    snprintf(message, size, "the device gives no reason");
    take_sentence(text, message, size);
    return false;
}
