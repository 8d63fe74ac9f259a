/* SPDX-License-Identifier: MIT */
/* store: events of loads and saves that the log is told of. */
#include "store/store.h"

void quire_store_tell_miss(quire_store *s, quire_miss miss, int tier)
{
    const char *where = tier == QUIRE_DISK ? "disk" : "remote";
    if (quire_miss_is_damage(miss))
        quire_log_say(&s->log, QUIRE_EVENT_PAGE, QUIRE_LOG_WARNING,
                      "A page of the %s tier is damaged and is removed: %s.", where, quire_miss_text(miss));
    else if (miss == QUIRE_MISS_VERSION)
        quire_log_say(&s->log, QUIRE_EVENT_VERSION, QUIRE_LOG_INFO,
                      "A page of the %s tier was saved by another version of Quire; it is left alone.",
                      where);
    else if (miss == QUIRE_MISS_DISK)
        quire_log_say(&s->log, QUIRE_EVENT_DISK, QUIRE_LOG_WARNING, "A page could not be read from %s: %s.",
                      quire_disk_directory(s->disk), quire_miss_text(miss));
}

void quire_store_tell_saved(quire_store *s, bool good)
{
    bool was_failing = atomic_exchange(&s->is_disk_failing, !good);
    if (was_failing == !good) return;
    if (!good)
        quire_log_say(&s->log, QUIRE_EVENT_DISK, QUIRE_LOG_WARNING,
                      "Pages cannot be saved to %s: %s. They are dropped until it works again.",
                      quire_disk_directory(s->disk), quire_disk_explain(s->disk));
    else
        quire_log_say(&s->log, QUIRE_EVENT_DISK, QUIRE_LOG_INFO, "Pages can be saved to %s again.",
                      quire_disk_directory(s->disk));
}
