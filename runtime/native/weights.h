/* A panel of `WIDTH` columns of a weight matrix (outputs of a product) for all inputs, in as few bytes as keep every
 * number to the last bit.
 *
 * FLOATS, BRAIN (bfloat16) and HALF: the numbers, [inputs, WIDTH]. The others hold groups of 32 inputs, each group with
 * a scale (IEEE half precision, [WIDTH]) and whole numbers that are multiplied by it: OCTETS signed ones [32, WIDTH],
 * NIBBLES 0 to 15 with an offset beside the scale, SIGNED_NIBBLES -8 to 7. Nibbles lie in words [4, WIDTH]; input
 * 8 * w + j of a group is in bits 4 * j of word w.
 */
#ifndef RADIXLOOP_WEIGHTS_H
#define RADIXLOOP_WEIGHTS_H

#include "numbers.h"

enum { COLUMNS = 3, WIDTH = COLUMNS * LANES, GROUP = 32 };

/* From the narrowest to the widest: the order in which they are tried. */
enum { SIGNED_NIBBLES, NIBBLES, OCTETS, BRAIN, HALF, FLOATS, FORMATS };

/* What is put before a group's whole numbers, and all of the group, in bytes. */
enum { SCALES = 2 * WIDTH, NIBBLE_WORDS = GROUP / 8 };

INLINE int is_grouped(int format) { return format < BRAIN; }

INLINE int has_offset(int format) { return format == NIBBLES; }

INLINE long group_bytes(int format) {
    return SCALES + (format == OCTETS ? GROUP * WIDTH : NIBBLE_WORDS * WIDTH * 4 + (has_offset(format) ? SCALES : 0));
}

static long panel_bytes(int format, long inputs) {
    if (is_grouped(format)) return inputs / GROUP * group_bytes(format);
    return inputs * WIDTH * (format == FLOATS ? 4 : 2);
}

#endif
