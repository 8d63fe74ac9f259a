/* SPDX-License-Identifier: MIT */
/* What docs/store.md tells operators to type, for tests that do exactly that. */
#ifndef QUIRE_TESTS_DOCS_KIT_H
#define QUIRE_TESTS_DOCS_KIT_H

/* The lines of the block whose first line is "# name", without that line. Aborts if there is none. To be freed. */
char *kit_documented(const char *name);
/* The rules of the store's login, from its "~" on: keys and commands. To be freed. */
char *kit_documented_rights(void);

#endif
