/* Emulates AMX's instructions for tiles of 8-bit integers, in place of those of tile_registers.h. */
#include <string.h>

static __thread struct {
    TileShapes shapes;
    uint8_t bytes[8][16][64];
} tiles;

static void shape_emulated(const TileShapes *shapes) { tiles.shapes = *shapes; }

static void load_emulated(int tile, const void *from, int64_t stride) {
    for (int line = 0; line < tiles.shapes.rows[tile]; line++)
        memcpy(tiles.bytes[tile][line], (const uint8_t *)from + line * stride, tiles.shapes.columns[tile]);
}

static void store_emulated(int tile, void *to, int64_t stride) {
    for (int line = 0; line < tiles.shapes.rows[tile]; line++)
        memcpy((uint8_t *)to + line * stride, tiles.bytes[tile][line], tiles.shapes.columns[tile]);
}

static void dot_emulated(int sums, int rows, int weights) {
    for (int row = 0; row < tiles.shapes.rows[rows]; row++)
        for (int output = 0; output < tiles.shapes.columns[weights] / 4; output++) {
            int32_t sum;
            memcpy(&sum, tiles.bytes[sums][row] + output * 4, sizeof sum);
            for (int i = 0; i < tiles.shapes.columns[rows]; i++)
                sum += (int8_t)tiles.bytes[rows][row][i] *
                       tiles.bytes[weights][i / 4][output * 4 + i % 4];
            memcpy(tiles.bytes[sums][row] + output * 4, &sum, sizeof sum);
        }
}

#define TILE_SHAPE(SHAPES) shape_emulated(SHAPES)
#define TILE_KEEP_SHAPE(SHAPES) (*(SHAPES) = tiles.shapes)
#define TILE_ZERO(TILE) memset(tiles.bytes[TILE], 0, sizeof tiles.bytes[TILE])
#define TILE_LOAD load_emulated
#define TILE_STORE store_emulated
#define TILE_DOT dot_emulated
