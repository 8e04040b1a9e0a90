/* The tile registers of AMX. Tests define DRAFTWIRE_TILES, the name of a header with macros in place of the instructions
 * for 8-bit integers, on processors without them. */
#ifndef DRAFTWIRE_TILE_REGISTERS_H
#define DRAFTWIRE_TILE_REGISTERS_H

#include <stdint.h>

/* The shape of each register, as the processor reads it. */
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t columns[16]; /* bytes per row */
    uint8_t rows[16];
} TileShapes;

#ifdef DRAFTWIRE_TILES
#include DRAFTWIRE_TILES
#else
#define TILE_SHAPE(SHAPES) _tile_loadconfig(SHAPES)
#define TILE_KEEP_SHAPE(SHAPES) _tile_storeconfig(SHAPES)
#define TILE_ZERO(TILE) _tile_zero(TILE)
#define TILE_LOAD(TILE, FROM, STRIDE) _tile_loadd(TILE, FROM, STRIDE)
#define TILE_STORE(TILE, TO, STRIDE) _tile_stored(TILE, TO, STRIDE)
#define TILE_DOT(SUMS, ROWS, WEIGHTS) _tile_dpbsud(SUMS, ROWS, WEIGHTS) /* signed rows, unsigned weights */
#endif

#endif
