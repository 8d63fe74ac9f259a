/* SPDX-License-Identifier: MIT */
/*
 * base.h: version, status, memory, threads, log. Every other header includes it.
 *
 * Structures. Every structure begins with its size: set it to sizeof the structure. A later version of the library only
 * appends members, so it knows from the size which members the program was compiled with; those that the program does not
 * have count as 0. A program may also be newer than the library: members that the library does not know must be 0, else the
 * call returns EUNSUPPORTED. A size below that of a size_t or above 65,536 is EINVAL: it was not set. The library fills as many bytes of an output structure as
 * its size says. Structures that are only passed in arrays have no size; the array comes with a stride instead, the distance
 * of its elements in bytes, which is sizeof the element. Members called reserved must be 0.
 *
 * Strides are in bytes, in all structures.
 *
 * Stability. Each section of the headers is marked "Interface: stable" or "Interface: experimental". Before 1.0, a minor version
 * (0.3, 0.4) may change what is stable only after the release before it has said so, and what is experimental at once. A patch
 * (0.2.1) changes neither. docs/promises.md has the rules.
 */
#ifndef QUIRE_BASE_H
#define QUIRE_BASE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define QUIRE_API
#elif defined(__GNUC__)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of these headers; quire_version() is that of the library that the program runs with. CMakeLists.txt has the same. */
#define QUIRE_VERSION_MAJOR 0
#define QUIRE_VERSION_MINOR 2
#define QUIRE_VERSION_PATCH 0

/* Bytes. Tiles, paged memory, and what an allocator's alloc and reserve return begin at a multiple of it. Rows in the caller's
 * memory need only the alignment of their values. */
#define QUIRE_ALIGNMENT 64u

/* Tokens in a tile and in a page. The number is part of every stored format and never changes. */
#define QUIRE_PAGE_TOKENS 64u

/* ------------------------------------------------------------------ status */
/* Interface: stable. */

#define QUIRE_STATUS_LIST(X)                                                                  \
    X(OK, "success")                                                                          \
    X(EINVAL, "an argument is outside its documented range")                                  \
    X(ENOMEM, "memory allocation failed")                                                     \
    X(EFULL, "the memory budget of the pool is used up")                                      \
    X(ERANGE, "required rows have already been evicted")                                      \
    X(EBUSY, "the object is in use, for example by an open step")                             \
    X(EUNSUPPORTED, "the codec, the machine or this version does not support this operation") \
    X(EFORMAT, "the data is damaged or not in this format")                                   \
    X(EVERSION, "the data has a format version that this library cannot read")                \
    X(EMISMATCH, "the data belongs to a different plan, geometry or profile")                 \
    X(EIO, "a read or write failed or timed out")                                             \
    X(ECANCELED, "the caller cancelled the operation")

typedef enum quire_status {
#define QUIRE_STATUS_ENUM(name, text) QUIRE_##name,
    QUIRE_STATUS_LIST(QUIRE_STATUS_ENUM)
#undef QUIRE_STATUS_ENUM
} quire_status;

QUIRE_API const char *quire_status_name(quire_status status); /* "EINVAL"; "UNKNOWN" for other numbers */
QUIRE_API const char *quire_status_text(quire_status status); /* the sentence of the list above */
QUIRE_API const char *quire_version(void);                    /* "0.2.0" */

/* --------------------------------------------------------- instruction sets */
/* Interface: stable. */

/* The inner loops exist in variants: "c", "neon", "neon-dotprod", "neon-i8mm", "avx2", "avxvnni", "avx512vnni",
 * "avx512vbmi", "amx". "avx512", the name of "avx512vbmi" before 0.2.0, is accepted too. The library uses the best one that
 * the machine supports. Encoded bytes are identical with all variants; attention outputs differ by rounding. */
QUIRE_API const char *quire_isa_in_use(void);
QUIRE_API const char *quire_isa_at(uint32_t index); /* supported variants, "c" first; NULL past the end */
/* Selects a variant, for tests and benchmarks; call it while nothing else computes. NULL: the default choice again.
 * EINVAL: unknown name. EUNSUPPORTED: this machine does not have it. */
QUIRE_API quire_status quire_isa_use(const char *name);
/* The library never reads the environment by itself. A program that wants its users to be able to choose calls this at its
 * start: if QUIRE_ISA names a variant, nothing better than that variant is used. EINVAL: QUIRE_ISA is an unknown name;
 * nothing has changed. */
QUIRE_API quire_status quire_isa_use_environment(void);

/* ----------------------------------------------- memory, threads, callbacks */
/* Interface: stable. */

/*
 * Where memory comes from. Without an allocator, or with alloc and free both NULL, the library uses malloc; with
 * reserve, release and discard all NULL it uses mmap. Give all or none of either group: with a part of one, calls return
 * EINVAL. alloc returns memory aligned to 64 bytes, or NULL; it need not be zeroed, and bytes is never 0. free and release
 * get what alloc and reserve returned, with the same number of bytes. reserve returns address space for pages, aligned to
 * 64 bytes, that reads as zero and uses no memory until it is touched. discard returns the memory of whole OS pages to the
 * system but keeps the addresses. Several threads may call these at once. Whoever is given an allocator copies it; what ctx
 * points to must live as long as any object that was made with it.
 */
typedef struct quire_allocator {
    size_t size;
    void *ctx;
    void *(*alloc)(void *ctx, size_t bytes);
    void (*free)(void *ctx, void *ptr, size_t bytes);
    void *(*reserve)(void *ctx, size_t bytes);
    void (*release)(void *ctx, void *ptr, size_t bytes);
    void (*discard)(void *ctx, void *ptr, size_t bytes);
} quire_allocator;

/*
 * How work is spread over threads. run() calls task(arg, i) once for every i < n_tasks, on any threads and in any order,
 * and returns when all calls have returned. Several threads may call run() at once. n_threads is the number of tasks
 * that can run at the same time; results never depend on it. With run == NULL the calling thread does everything. Whoever
 * is given an executor copies it; what ctx points to must live as long as it is used. openmp.h has one for programs that
 * use OpenMP.
 */
typedef struct quire_executor {
    size_t size;
    void *ctx;
    void (*run)(void *ctx, void (*task)(void *arg, uint32_t index), void *arg, uint32_t n_tasks);
    uint32_t n_threads;
    uint32_t reserved;
} quire_executor;

/* A small thread pool: n_threads - 1 threads that work alongside the calling thread. n_threads is 1 to 1024. ENOMEM: the
 * system has no room for so many. Destroy it after everything that was given its executor. */
typedef struct quire_threads quire_threads;
QUIRE_API quire_status quire_threads_create(quire_threads **out, uint32_t n_threads);
QUIRE_API void quire_threads_destroy(quire_threads *threads);
/* Fills *out, whose size must be set. */
QUIRE_API quire_status quire_threads_executor(quire_threads *threads, quire_executor *out);

/* Receives sentences for operators. The library prints nothing, with or without a log. Several threads may call write() at
 * once; it must not call the object that it serves. */
typedef enum quire_log_level { QUIRE_LOG_INFO = 0, QUIRE_LOG_WARNING, QUIRE_LOG_ERROR } quire_log_level;

typedef struct quire_log {
    size_t size;
    void *ctx;
    void (*write)(void *ctx, quire_log_level level, const char *sentence);
} quire_log;

/* Transfer exactly n bytes. If a callback returns anything but QUIRE_OK, the function that called it returns QUIRE_EIO. */
typedef quire_status (*quire_write_fn)(void *ctx, const void *bytes, size_t n);
typedef quire_status (*quire_read_fn)(void *ctx, void *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif
