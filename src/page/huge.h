/* SPDX-License-Identifier: MIT */
/* page: huge OS pages. A region is 2 MiB of the memory of a class, aligned. It gets a huge page when pages in use own all of it,
 * never before: memory that no page owns stays untouched. The caller holds the lock of the pages unless something else is said. */
#ifndef QUIRE_PAGE_HUGE_H
#define QUIRE_PAGE_HUGE_H

#include "page/page.h"

/* What a page does to the regions that it lies in. was_resident: it was kept for reuse. */
void quire_regions_take(quire_pages *pages, quire_page *page, bool was_resident);
void quire_regions_drop(quire_page *page);
/* Gives the memory of a page back to the system. What lies in a huge page stays resident until the whole region is free or another
 * region of the class is given back in part, so at most one region of a class waits. */
void quire_regions_discard(quire_pages *pages, quire_page *page);

/* A class without regions works the same with small pages. */
void quire_regions_create(const quire_pages *pages, quire_page_class *c);
void quire_regions_destroy(const quire_pages *pages, quire_page_class *c);

#endif
