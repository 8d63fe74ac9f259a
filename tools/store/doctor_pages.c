/* SPDX-License-Identifier: MIT */
/* store_doctor: the directory, opened as an engine opens it: index, size limit, some of the pages. */
#define _GNU_SOURCE
#include "store/doctor.h"

#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#define SAMPLE 1000u
#define PREFIX_PAGES 256u /* 16,384 tokens */
#define FUTURE_US 60000000u

typedef struct seen {
    uint64_t n, n_damaged, n_future, n_unknown, payload_bytes, largest;
    uint64_t now_us;
    quire_miss damage; /* of the first */
} seen;

static quire_status look_at_object(void *ctx, const quire_object_info *info, const void *bytes, size_t n)
{
    seen *s = (seen *)ctx;
    (void)bytes;
    (void)n;
    s->n++;
    s->payload_bytes += info->payload_bytes;
    if (info->payload_bytes > s->largest) s->largest = info->payload_bytes;
    if (info->damage == QUIRE_MISS_VERSION)
        s->n_unknown++;
    else if (info->damage && !s->n_damaged++)
        s->damage = info->damage;
    s->n_future += info->used_us > s->now_us + FUTURE_US;
    return s->n < SAMPLE ? QUIRE_OK : QUIRE_EIO;
}

static void look_at_sample(doctor *d, quire_store *store, const quire_store_stats *st, seen *s)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    s->now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    quire_status status = quire_store_each(store, 0, look_at_object, s);
    if (status && s->n < SAMPLE) {
        doctor_say(d, "disk.pages", SEVERITY_FAULT, "Look into the system log for errors of the disk.",
                   "The pages could not be listed.");
        return;
    }
    d->largest_page_bytes = s->largest;
    if (s->n_damaged)
        doctor_say(
            d, "disk.pages", SEVERITY_WARNING,
            "quire store verify lists all damaged pages, quire store gc removes them. If they come back, check "
            "the disk.",
            "%llu of %llu pages that were looked at are damaged (the first: %s%s).",
            (unsigned long long)s->n_damaged, (unsigned long long)s->n, quire_miss_text(s->damage),
            s->damage == QUIRE_MISS_LENGTH ? "; a slab file is missing or truncated" : "");
    else
        doctor_say(d, "disk.pages", SEVERITY_OK, NULL, "%llu pages were looked at, of %llu: none is damaged.",
                   (unsigned long long)s->n, (unsigned long long)st->disk_objects);
    if (s->n_future)
        doctor_say(
            d, "disk.clock", SEVERITY_WARNING, "Set the clocks of the machine right (NTP).",
            "%llu pages were used in the future, says the clock: what is evicted first is not the oldest.",
            (unsigned long long)s->n_future);
    else
        doctor_say(d, "disk.clock", SEVERITY_OK, NULL, "No page is from the future.");
}

static void look_at_space(doctor *d, const quire_store_stats *st, const seen *s)
{
    struct statvfs fs;
    double cap = (double)st->disk_cap_bytes, used = (double)st->disk_bytes;
    if (statvfs(d->options->directory, &fs) == 0) {
        double available = (double)fs.f_bavail * (double)fs.f_frsize;
        if (used < cap && available < cap - used)
            doctor_say(d, "disk.space", SEVERITY_WARNING,
                       "Make room, or lower the size limit (disk_bytes; --store-size of quire serve).",
                       "The files may grow by %.3f GB, but the file system has only %.3f GB left.",
                       (cap - used) / 1e9, available / 1e9);
        else
            doctor_say(d, "disk.space", SEVERITY_OK, NULL, "%.3f of %.3f GB are used; %.3f GB are free.",
                       used / 1e9, cap / 1e9, available / 1e9);
    }
    if (used > 1.01 * cap)
        doctor_say(
            d, "disk.over_cap", SEVERITY_WARNING,
            "Wait if the limit was lowered just now. Otherwise unpin pages, or remove files that are not the store's.",
            "The files take %.3f GB, more than the limit of %.3f GB.", used / 1e9, cap / 1e9);
    double prefix = s->n ? (double)PREFIX_PAGES * (double)s->payload_bytes / (double)s->n : 0;
    if (prefix > cap)
        doctor_say(d, "disk.cap", SEVERITY_WARNING, "Raise the size limit (disk_bytes).",
                   "The limit of %.3f GB is less than one prefix of 16,384 tokens takes (about %.3f GB).",
                   cap / 1e9, prefix / 1e9);
    else
        doctor_say(d, "disk.cap", SEVERITY_OK, NULL, "The limit is %.3f GB.", cap / 1e9);
    double pinned = s->n ? (double)st->pinned_objects * (double)s->payload_bytes / (double)s->n : 0;
    if (pinned > cap / 2)
        doctor_say(
            d, "disk.pinned", SEVERITY_WARNING, "Unpin prefixes that are no longer needed.",
            "About %.3f GB are pinned, more than half of the limit: little is left for everything else.",
            pinned / 1e9);
    else
        doctor_say(d, "disk.pinned", SEVERITY_OK, NULL, "%llu pages are pinned.",
                   (unsigned long long)st->pinned_objects);
}

/* What the store told while it was opened. */
typedef struct told {
    char damaged[256]; /* "": nothing */
} told;

static void hear(void *ctx, quire_log_level level, const char *sentence)
{
    told *t = (told *)ctx;
    if (level >= QUIRE_LOG_WARNING && strstr(sentence, "index") && !*t->damaged)
        (void)snprintf(t->damaged, sizeof t->damaged, "%s", sentence);
}

static quire_store *open_store(doctor *d, told *t)
{
    char message[512] = "";
    quire_store *store = NULL;
    quire_log log = {.size = sizeof log, .ctx = t, .write = hear};
    quire_store_options o = {.size = sizeof o,
                             .directory = d->options->directory,
                             .log = &log,
                             .message = message,
                             .message_size = sizeof message};
    quire_status status = quire_store_open(&store, &o);
    if (!status) {
        doctor_say(d, "disk.open", SEVERITY_OK, NULL, "The directory can be opened.");
        return store;
    }
    doctor_say(d, "disk.open", SEVERITY_FAULT,
               status == QUIRE_EVERSION
                   ? "Use the version of Quire that made it, or another directory."
                   : "Remove what is in the way, or use another directory: the store is a cache.",
               "The directory cannot be opened: %s.", *message ? message : quire_status_text(status));
    return NULL;
}

void doctor_look_at_pages(doctor *d)
{
    told t = {.damaged = ""};
    seen s = {0};
    quire_store_stats st = {.size = sizeof st};
    quire_store *store = open_store(d, &t);
    if (!store) return;
    for (int i = 0; i < 40; i++) { /* a short rebuild is waited for */
        struct timespec pause = {.tv_nsec = 50000000};
        (void)quire_store_stats_get(store, &st);
        if (i && !st.disk_rebuilding) break;
        (void)nanosleep(&pause, NULL);
    }
    look_at_sample(d, store, &st, &s);
    look_at_space(d, &st, &s);
    (void)quire_store_stats_get(store, &st);
    quire_store_close(store); /* what it tells is told by now */
    if (st.disk_rebuilding)
        doctor_say(
            d, "disk.rebuild", SEVERITY_WARNING,
            "Leave an engine running; loads find more pages as it goes on. A terabyte takes a minute or less.",
            "The index is being made anew: %llu pages were found so far.",
            (unsigned long long)st.disk_objects);
    else if (*t.damaged)
        doctor_say(d, "disk.rebuild", SEVERITY_WARNING, "If it happens again, check the disk.",
                   "The index was damaged or missing and was made anew just now: %llu pages.",
                   (unsigned long long)st.disk_objects);
    else
        doctor_say(d, "disk.rebuild", SEVERITY_OK, NULL, "The index is whole.");
    if (st.disk_unknown)
        doctor_say(d, "disk.versions", SEVERITY_NOTE,
                   "If no engine of another version uses the directory any more, use a new directory.",
                   "%llu pages were saved by other versions of Quire. They take space and are left alone.",
                   (unsigned long long)st.disk_unknown);
    else
        doctor_say(d, "disk.versions", SEVERITY_OK, NULL, "All pages are of this version.");
}
