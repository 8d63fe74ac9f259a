/* SPDX-License-Identifier: MIT */
/* tiles: AMX. The registers belong to the thread and are the same for all files, so these are functions of tiles.c. */
#ifndef QUIRE_EMULATE_TILES_H
#define QUIRE_EMULATE_TILES_H

#include <stddef.h>

void quire_emulate_tile_loadconfig(const void *config);
void quire_emulate_tile_storeconfig(void *config);
void quire_emulate_tile_release(void);
void quire_emulate_tile_zero(int tile);
void quire_emulate_tile_loadd(int tile, const void *base, size_t stride);
void quire_emulate_tile_stored(int tile, void *base, size_t stride);
void quire_emulate_tile_dpbssd(int sum, int a, int b);
void quire_emulate_tile_dpbsud(int sum, int a, int b);

#define _tile_loadconfig quire_emulate_tile_loadconfig
#define _tile_storeconfig quire_emulate_tile_storeconfig
#define _tile_release quire_emulate_tile_release
#define _tile_zero quire_emulate_tile_zero
#define _tile_loadd quire_emulate_tile_loadd
#define _tile_stored quire_emulate_tile_stored
#define _tile_dpbssd quire_emulate_tile_dpbssd
#define _tile_dpbsud quire_emulate_tile_dpbsud

#endif
