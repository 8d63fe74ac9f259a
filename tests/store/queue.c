/* SPDX-License-Identifier: MIT */
/* A thread that saves does not spin while a flush ends: not when nothing is left for it to do. */
#include "store/kit/store_kit.h"
#include "store/queue.h"

int main(void)
{
    quire_allocator a = quire_mem_allocator(NULL);
    _Atomic uint64_t bytes = 0;
    quire_queue q;
    quire_item *taken[4];
    bool flushing;
    KIT_REQUIRE(quire_queue_init(&q, &a, 1 << 20, &bytes));
    KIT_REQUIRE(quire_queue_put(&q, quire_item_create(&a, QUIRE_TOUCH)));
    KIT_REQUIRE(quire_queue_take(&q, taken, 4, 1 << 20, quire_deadline(1000), &flushing) == 1 && !flushing);

    /* As between the last item's end and the moment when the one who flushes wakes up. */
    q.flushing = 1;
    uint64_t begin = quire_now();
    KIT_REQUIRE(!quire_queue_take(&q, taken + 1, 3, 1 << 20, quire_deadline(10000), &flushing) && flushing);
    KIT_REQUIRE(quire_now() - begin < 5 * QUIRE_SECOND); /* an item is held: at once */
    quire_queue_done(&q, taken, 1);
    begin = quire_now();
    KIT_REQUIRE(!quire_queue_take(&q, taken, 4, 1 << 20, quire_deadline(100), &flushing));
    KIT_REQUIRE(quire_now() - begin >= 99 * QUIRE_MS); /* none is: not before its time */
    q.flushing = 0;
    KIT_REQUIRE(quire_queue_flush(&q, quire_deadline(1000)));
    quire_queue_fini(&q);
    return 0;
}
