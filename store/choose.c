/* SPDX-License-Identifier: MIT */
/* store: the longest prefix that can be had. */
#include "store/load.h"

/* held[i]: how many of the first i slots of the group are there; those below the sequence's length count as there. */
static void count_held(const quire_load *load, uint32_t group, uint32_t states)
{
    load->held[0] = 0;
    for (uint32_t i = 0; i < load->n_pages; i++) {
        bool there = i < load->first_page || states >> quire_load_slot(load, group, i)->state & 1;
        load->held[i + 1] = load->held[i] + there;
    }
}

static bool has_all(const quire_load *load, uint32_t group, uint32_t n)
{
    uint32_t kept, first;
    quire_namespace_range(load->ns, &load->ring, group, n, &kept, &first);
    return load->held[kept] == kept && load->held[n] - load->held[first] == n - first;
}

/* Groups one after the other, each lowering the bound, until none does. */
uint32_t quire_load_choose(const quire_load *load, uint32_t states)
{
    uint32_t n = load->n_pages, before;
    do {
        before = n;
        for (uint32_t g = 0; g < load->ns->n_groups; g++) {
            count_held(load, g, states);
            while (n > load->first_page && !has_all(load, g, n)) n--;
        }
    } while (n != before && load->ns->n_groups > 1);
    return n;
}
