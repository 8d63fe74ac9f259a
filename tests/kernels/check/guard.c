/* SPDX-License-Identifier: MIT */
/* check: memory that ends or begins at a page which must not be touched; faults become failures. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "check.h"

#include "core/float_mode.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define RIM 256u /* bytes on the open side that are looked at afterwards */
#define RIM_BYTE 0xa5

static const char *const names[N_MEMORIES] = {
    "tile",    "next tile",       "expanded tile", "scratch",    "query rows",   "z",
    "r",       "sums of z and r", "unit",          "mean_score", "skip_r_below", "scores",
    "visible", "factor",          "max",           "sum",        "accumulators",
};

/* Room between two pages that nobody may touch. */
typedef struct memory {
    uint8_t *low, *high; /* of the room */
    uint8_t *at;         /* what is in use; NULL: nothing */
    size_t bytes;
} memory;

static memory memories[N_MEMORIES];
static size_t page;

static sigjmp_buf back;
static volatile sig_atomic_t armed;
static const uint8_t *volatile fault_address;
static volatile sig_atomic_t fault_signal;

static void caught(int number, siginfo_t *info, void *unused)
{
    (void)unused;
    if (!armed) {
        signal(number, SIG_DFL); /* not ours: it comes again and ends the program */
        return;
    }
    fault_signal = number;
    fault_address = (const uint8_t *)info->si_addr;
    siglongjmp(back, 1);
}

static size_t most_bytes(check_memory m)
{
    const size_t strips = 2 * ROWS, stride = quire_z_stride(MOST_D), d = MOST_D;
    switch (m) {
    case MEMORY_TILE:
    case MEMORY_NEXT: return TOKENS * d * sizeof(float);
    case MEMORY_EXPANDED: return quire_expanded_bytes(MOST_D);
    case MEMORY_SCRATCH: return quire_kernel_scratch(MOST_D);
    case MEMORY_ROW: return strips * d * sizeof(float);
    case MEMORY_Z: return strips * 2 * 2 * stride;
    case MEMORY_R: return strips * 2 * stride;
    case MEMORY_SUM: return strips * (d / 32) * 2 * sizeof(int32_t);
    case MEMORY_ACC: return ROWS * (d + (d / 32 + 4) * QUIRE_BIAS_LANES) * sizeof(float);
    default: return ROWS * TOKENS * sizeof(float);
    }
}

static void *checked(void *p)
{
    if (p != MAP_FAILED) return p;
    perror("quire_check: mmap");
    exit(2);
}

void check_guard_open(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    for (uint32_t m = 0; m < N_MEMORIES; m++) {
        size_t room = (most_bytes((check_memory)m) + RIM + page - 1) / page * page;
        uint8_t *map =
            (uint8_t *)checked(mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        memories[m] = (memory){.low = map + page, .high = map + page + room};
        if (mprotect(memories[m].low, room, PROT_READ | PROT_WRITE)) checked(MAP_FAILED);
    }
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGILL, &action, NULL);
    sigaction(SIGFPE, &action, NULL);
}

void check_guard_close(void)
{
    for (uint32_t m = 0; m < N_MEMORIES; m++)
        munmap(memories[m].low - page, (size_t)(memories[m].high - memories[m].low) + 2 * page);
}

void *check_room(check_memory m, check_side side, size_t bytes)
{
    memory *to = &memories[m];
    if (bytes + RIM > (size_t)(to->high - to->low)) {
        fprintf(stderr, "quire_check: %zu bytes of %s are more than expected\n", bytes, names[m]);
        exit(2);
    }
    to->bytes = bytes;
    to->at = side == GUARD_BEHIND ? to->high - bytes : to->low;
    memset(side == GUARD_BEHIND ? to->at - RIM : to->at + bytes, RIM_BYTE, RIM);
    memset(to->at, 0xff, bytes);
    return to->at;
}

void *check_copy(check_memory m, check_side side, const void *from, size_t bytes)
{
    void *to = check_room(m, side, bytes);
    memcpy(to, from, bytes);
    return to;
}

bool check_rims(void)
{
    bool intact = true;
    for (uint32_t m = 0; m < N_MEMORIES; m++) {
        memory *x = &memories[m];
        if (!x->at) continue;
        bool behind = x->at + x->bytes == x->high;
        uint8_t *rim = behind ? x->at - RIM : x->at + x->bytes;
        for (uint32_t i = 0; i < RIM; i++) {
            if (rim[i] == RIM_BYTE) continue;
            check_fail("wrote %u bytes %s %s", behind ? RIM - i : i, behind ? "before" : "behind the end of",
                       names[m]);
            memset(rim, RIM_BYTE, RIM);
            intact = false;
            break;
        }
    }
    return intact;
}

/* The memory whose pages the address belongs to. */
static void describe_fault(void)
{
    const char *kind = fault_signal == SIGILL ? "illegal instruction" : "fault";
    for (uint32_t m = 0; m < N_MEMORIES; m++) {
        const memory *x = &memories[m];
        if (!x->at || fault_address < x->low - page || fault_address >= x->high + page) continue;
        if (fault_address >= x->high)
            check_fail("%s, %zu bytes behind the end of %s (%zu bytes)", kind,
                       (size_t)(fault_address - (x->at + x->bytes)), names[m], x->bytes);
        else
            check_fail("%s, %zu bytes before %s (%zu bytes)", kind, (size_t)(x->at - fault_address), names[m],
                       x->bytes);
        return;
    }
    check_fail("%s at %p, which belongs to nothing here", kind, (const void *)fault_address);
}

/* Apart, so that no local variable lives across the return from a fault. */
static QUIRE_APART bool protected_call(void (*call)(void *), void *arg)
{
    if (sigsetjmp(back, 0)) {
        armed = 0;
        return false;
    }
    armed = 1;
    call(arg);
    armed = 0;
    return true;
}

bool check_call(const quire_kernels *kernels, void (*call)(void *), void *arg)
{
    _Alignas(64) uint8_t saved[64];
    uint32_t mode =
        quire_float_mode_set(kernels == &quire_kernels_c ? QUIRE_FLOAT_MODE_KEEP : QUIRE_FLOAT_MODE_FLUSH);
    if (kernels->enter) kernels->enter(saved, ROWS);
    bool ok = protected_call(call, arg);
    if (kernels->leave) kernels->leave(saved);
    quire_float_mode_leave(mode);
    if (!ok) describe_fault();
    return ok;
}
