/* SPDX-License-Identifier: MIT */
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE
#else
#define _GNU_SOURCE
#endif
#include "common/system.h"

#include <stdio.h>
#include <unistd.h>

#if defined(__APPLE__)

#include <mach-o/dyld.h>
#include <mach/mach.h>
#include <sys/sysctl.h>

bool system_program_path(char *path, size_t size)
{
    uint32_t n = size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
    return _NSGetExecutablePath(path, &n) == 0;
}

uint64_t system_free_bytes(void)
{
    vm_statistics64_data_t now;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    mach_port_t host = mach_host_self();
    kern_return_t failed = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&now, &n);
    mach_port_deallocate(mach_task_self(), host);
    if (failed) return 0;
    return ((uint64_t)now.free_count + now.inactive_count) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t system_memory_bytes(void)
{
    uint64_t bytes = 0;
    size_t n = sizeof bytes;
    return sysctlbyname("hw.memsize", &bytes, &n, NULL, 0) ? 0 : bytes;
}

#else

bool system_program_path(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    if (n <= 0) return false;
    path[n] = 0;
    return true;
}

uint64_t system_free_bytes(void)
{
    char line[128];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) return 0;
    while (!kib && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) != 1) kib = 0;
    fclose(file);
    return (uint64_t)kib * 1024;
}

uint64_t system_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
}

#endif
