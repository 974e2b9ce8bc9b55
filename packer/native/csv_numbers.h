/* Numbers of csv.c: tests of many bytes at once, and the nearest double to a decimal number.

  - The digits of a number, up to 32, are loaded backwards from its end, twice: unchanged, and shifted by a
    byte for those before the point. Masks join both, and four vector multiplications sum them: no step
    depends on a digit.
  - Almost every number has at most 19 digits; then Clinger's division, or Eisel and Lemire's multiplication
    by a power of five in 128 bits, gives the nearest double.

Properties that a processor cannot predict (signs, numbers of digits) decide no branch on the path of most
numbers.
*/
#ifndef CSV_NUMBERS_H
#define CSV_NUMBERS_H

#include "native.h"

#include <float.h>

#define AROUND 48 /* bytes before and after a cell's beginning that quick_number may load */
#define SMALLEST_POWER (-342)
#define LARGEST_POWER 308

INLINE uint64_t
load8(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

#if defined(__SSE2__)
INLINE __m128i
load16(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)at);
}

INLINE uint64_t
bits64(__m128i a, __m128i b, __m128i c, __m128i d)
{
    uint64_t low = (uint32_t)_mm_movemask_epi8(a) | (uint32_t)_mm_movemask_epi8(b) << 16;
    uint64_t high = (uint32_t)_mm_movemask_epi8(c) | (uint32_t)_mm_movemask_epi8(d) << 16;
    return low | high << 32;
}

/* Return which of 64 bytes equal this one. */
INLINE uint64_t
equal64(const uint8_t *at, int byte)
{
    __m128i wanted = _mm_set1_epi8((char)byte);
    return bits64(_mm_cmpeq_epi8(load16(at), wanted), _mm_cmpeq_epi8(load16(at + 16), wanted),
                  _mm_cmpeq_epi8(load16(at + 32), wanted), _mm_cmpeq_epi8(load16(at + 48), wanted));
}

/* Return which of 32 bytes are not digits. */
INLINE uint32_t
others32(const uint8_t *at)
{
    __m128i zero = _mm_set1_epi8('0'), nine = _mm_set1_epi8(9);
    __m128i a = _mm_sub_epi8(load16(at), zero), b = _mm_sub_epi8(load16(at + 16), zero);
    a = _mm_cmpeq_epi8(_mm_min_epu8(a, nine), a);
    b = _mm_cmpeq_epi8(_mm_min_epu8(b, nine), b);
    return ~((uint32_t)_mm_movemask_epi8(a) | (uint32_t)_mm_movemask_epi8(b) << 16);
}
#else
/* Return the upper bits of eight bytes, side by side. */
INLINE uint64_t
upper_bits(uint64_t word)
{
    return ((word >> 7 & 0x0101010101010101u) * 0x0102040810204080u) >> 56;
}

INLINE uint64_t
equal64(const uint8_t *at, int byte)
{
    const uint64_t low = 0x7f7f7f7f7f7f7f7fu;
    uint64_t bits = 0;
    for (int k = 0; k < 8; k++) {
        uint64_t differ = load8(at + 8 * k) ^ (0x0101010101010101u * (uint8_t)byte);
        bits |= upper_bits(~(((differ & low) + low) | differ)) << 8 * k;
    }
    return bits;
}

INLINE uint32_t
others32(const uint8_t *at)
{
    const uint64_t low = 0x7f7f7f7f7f7f7f7fu, ones = 0x0101010101010101u;
    uint32_t bits = 0;
    for (int k = 0; k < 4; k++) {
        uint64_t word = load8(at + 8 * k) ^ (ones * '0'); /* digits, and nothing else, become 0 to 9 */
        bits |= (uint32_t)upper_bits(((word & low) + ones * (0x80 - 10)) | word) << 8 * k;
    }
    return bits;
}
#endif

typedef struct {
    uint64_t digits;
    int64_t power; /* of ten */
    int negative, whole; /* whole: neither point nor exponent */
    int cut;       /* digits after the nineteenth were dropped, and some were not 0 */
} Number;

#if defined(__SIZEOF_INT128__)
INLINE uint64_t
multiply(uint64_t a, uint64_t b, uint64_t *low)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    *low = (uint64_t)product;
    return (uint64_t)(product >> 64);
}
#else
static uint64_t
multiply(uint64_t a, uint64_t b, uint64_t *low)
{
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t first = al * bl, second = ah * bl + (first >> 32), third = al * bh + (uint32_t)second;
    *low = third << 32 | (uint32_t)first;
    return ah * bh + (second >> 32) + (third >> 32);
}
#endif

/* Return the bits of the double nearest to digits * 10**power. D. Lemire, "Number parsing at a gigabyte per
second", 2021;
without its fallback: N. Mushtak and D. Lemire, "Fast number parsing without fallback", 2022. */
INLINE uint64_t
nearest(const uint64_t (*powers)[2], uint64_t digits, int64_t power)
{
    const uint64_t infinite = (uint64_t)0x7ff << 52;
    if (!digits || power < SMALLEST_POWER) return 0;
    if (power > LARGEST_POWER) return infinite;
    const uint64_t *five = powers[power - SMALLEST_POWER];
    int zeros = __builtin_clzll(digits);
    uint64_t low, high = multiply(digits << zeros, five[0], &low), unused;
    uint64_t more = multiply(digits << zeros, five[1], &unused);
    /* rarely matters, except for decimals of float32 numbers: too often for a predictable branch */
    low += more;
    high += low < more;
    int upper = (int)(high >> 63);
    uint64_t mantissa = high >> (upper + 9);
    int64_t exponent = ((217706 * power) >> 16) + 63 + upper - zeros + 1023;
    if (RARE(exponent <= 0)) { /* below the normal numbers */
        if (exponent < -62) return 0;
        mantissa >>= 1 - exponent;
        return (mantissa + (mantissa & 1)) >> 1; /* 2**52 is the first normal number, and has its bits */
    }
    /* Halfway between two doubles: round to even. */
    if (low <= 1 && power >= -4 && power <= 23 && (mantissa & 3) == 1 && mantissa << (upper + 9) == high) mantissa--;
    mantissa = (mantissa + (mantissa & 1)) >> 1;
    /* rounded up to 2**53, it carries into the exponent */
    uint64_t bits = mantissa + ((uint64_t)(exponent - 1) << 52);
    return bits >= infinite ? infinite : bits;
}

/* True if doubles are computed without wider registers. */
#define EXACT_DOUBLES (FLT_EVAL_METHOD == 0 || FLT_EVAL_METHOD == 16)
static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

INLINE double
as_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

/* Return the nearest double. Not for cut numbers. */
INLINE double
to_double(const uint64_t (*powers)[2], const Number *number)
{
#if EXACT_DOUBLES
    /* Both are exact, so that one operation rounds once (Clinger). */
    if (number->digits <= (uint64_t)1 << 53 && number->power >= -22 && number->power <= 22) {
        double value = (double)(int64_t)number->digits;
        value = number->power < 0 ? value / TENS[-number->power] : value * TENS[number->power];
        uint64_t bits;
        memcpy(&bits, &value, 8);
        /* no branch: half of them may be negative */
        return as_double(bits | (uint64_t)number->negative << 63);
    }
#endif
    return as_double(nearest(powers, number->digits, number->power) | (uint64_t)number->negative << 63);
}

static const uint8_t MASKS[64] = {
    [32] = 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
    255,        255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};

#if defined(__SSE2__)
/* Return 16 bytes up to `end`: the last `tail` unchanged, before them those before the point, `digits` in
total; others 0. */
INLINE __m128i
sixteen(const uint8_t *end, int tail, int digits)
{
    __m128i behind = load16(MASKS + 16 + tail), all = load16(MASKS + 16 + digits);
    __m128i as_is = _mm_and_si128(behind, load16(end - 16)), moved = _mm_andnot_si128(behind, load16(end - 17));
    __m128i bytes = _mm_or_si128(as_is, moved);
    return _mm_and_si128(_mm_sub_epi8(bytes, _mm_set1_epi8('0')), all);
}

/* Combine single digits to groups of four. */
INLINE __m128i
fours(__m128i ones)
{
    __m128i tens = _mm_mullo_epi16(_mm_and_si128(ones, _mm_set1_epi16(255)), _mm_set1_epi16(10));
    __m128i twos = _mm_add_epi16(tens, _mm_srli_epi16(ones, 8));
    return _mm_madd_epi16(twos, _mm_set1_epi32(1 << 16 | 100));
}

/* Compute the number of up to 32 digits before `end`, with a point among them. Returns 0 if it might not
fit. */
INLINE int
add_up(const uint8_t *end, int tail, int digits, uint64_t *sum)
{
    const __m128i tens = _mm_set1_epi32(1 << 16 | 10000);
    __m128i last = fours(sixteen(end, tail, digits)), eights;
    uint64_t upper, lower;
    /* 12, not 16: doubles have about 16 digits, some more, some fewer, which would be unpredictable */
    if (digits <= 12) {
        eights = _mm_madd_epi16(_mm_packs_epi32(last, last), tens);
        _mm_storel_epi64((__m128i *)&lower, eights);
        *sum = (uint64_t)(uint32_t)lower * 100000000 + (lower >> 32);
        return 1;
    }
    eights = _mm_madd_epi16(_mm_packs_epi32(fours(sixteen(end - 16, tail - 16, digits - 16)), last), tens);
    _mm_storel_epi64((__m128i *)&upper, eights);
    _mm_storel_epi64((__m128i *)&lower, _mm_unpackhi_epi64(eights, eights));
    *sum = ((upper >> 32) * 100000000 + (uint32_t)lower) * 100000000 + (lower >> 32);
    return !(uint32_t)upper && upper >> 32 <= 1843;
}
#else
INLINE uint64_t
eight(const uint8_t *end, int tail, int digits)
{
    uint64_t behind = load8(MASKS + 24 + (tail < -8 ? -8 : tail)), all = load8(MASKS + 24 + (digits < -8 ? -8 : digits));
    uint64_t word = ((load8(end - 8) & behind) | (load8(end - 9) & ~behind)) & all;
    word = (word & 0x0f0f0f0f0f0f0f0fu) * (256 * 10 + 1) >> 8;
    word = (word & 0x00ff00ff00ff00ffu) * (65536 * 100 + 1) >> 16;
    return (word & 0x0000ffff0000ffffu) * (((uint64_t)10000 << 32) + 1) >> 32;
}

INLINE int
add_up(const uint8_t *end, int tail, int digits, uint64_t *sum)
{
    uint64_t upper = eight(end - 16, tail - 16, digits - 16);
    *sum = (upper * 100000000 + eight(end - 8, tail - 8, digits - 8)) * 100000000 + eight(end, tail, digits);
    return upper <= 1843 && digits <= 24;
}
#endif

/* Read a cell [-]digits[.digits][e[sign]digits] of up to 31 bytes. Returns 0 for all others, and for some of
these. AROUND bytes before and after `s` must be readable. */
INLINE int
quick_number(const uint8_t *s, size_t n, int point, Number *number)
{
    size_t negative = *s == '-';
    s += negative;
    n -= negative;
    if (n - 1 >= 31) return 0; /* also an empty one */
    uint32_t marks = others32(s) & (((uint32_t)1 << n) - 1);
    int stop = (int)n, tail = stop, digits = stop, power = 0;
    number->whole = !marks;
    if (marks) {
        int dot = __builtin_ctz(marks);
        if (s[dot] != point) return 0;
        marks &= marks - 1;
        if (marks) {
            uint32_t last;
            int minus;
            /* e, a sign and two digits, as most programs write it */
            if (marks == (uint32_t)3 << 28 >> (32 - n)) {
                stop = (int)n - 4;
                memcpy(&last, s + stop, 4);
                if ((last & 0xdf) != 'E' || ((last >> 8 & 255) - '+') & ~2u) return 0;
                minus = last >> 10 & 1;
                power = (int)((last >> 16 & 15) * 10 + (last >> 24 & 15));
            } else {
                stop = __builtin_ctz(marks);
                if ((s[stop] | 32) != 'e') return 0;
                int at = stop + 1;
                marks &= marks - 1;
                minus = s[at] == '-';
                if (marks && (marks != (uint32_t)1 << at || (!minus && s[at] != '+'))) return 0;
                at += marks != 0;
                if (at == (int)n || (int)n - at > 3) return 0;
                for (; at < (int)n; at++) power = power * 10 + (s[at] - '0');
            }
            power = (power ^ -minus) + minus; /* equally likely: no branch */
        }
        tail = stop - dot - 1;
        digits = stop - 1;
        if (!digits) return 0;
        power -= tail;
    }
    number->power = power;
    number->negative = (int)negative;
    return add_up(s + stop, tail, digits, &number->digits);
}

/* Read any number. Returns 0 if the text is not a number. */
SLOW static int
slow_number(const uint8_t *s, size_t n, int point, int thousands, Number *number)
{
    const uint8_t *end = s + n;
    int count = 0, some = 0;    /* count: significant digits; some: there are digits */
    int group = 0, grouped = 0; /* group: digits after the last separator, of which there are some */
    *number = (Number){.whole = 1};
    if (s < end && (*s == '-' || *s == '+')) number->negative = *s++ == '-';
    for (int behind = 0;; s++) {
        if (s < end && (unsigned)(*s - '0') <= 9) {
            some = 1;
            group += !behind;
            if (count < 19) {
                number->digits = number->digits * 10 + (unsigned)(*s - '0');
                count += number->digits != 0;
                number->power -= behind;
            } else {
                number->cut |= *s != '0';
                number->power += !behind;
            }
        } else if (s < end && *s == point && !behind) {
            behind = 1;
            number->whole = 0;
        } else if (s < end && *s == thousands && !behind && some && (grouped ? group == 3 : group <= 3)) {
            group = 0;
            grouped = 1;
        } else {
            break;
        }
    }
    if (!some || (grouped && group != 3)) return 0;
    if (s < end && (*s | 32) == 'e') {
        int64_t power = 0;
        int minus = 0;
        number->whole = 0;
        if (++s < end && (*s == '-' || *s == '+')) minus = *s++ == '-';
        if (s == end) return 0;
        for (; s < end && (unsigned)(*s - '0') <= 9; s++)
            if (power < (int64_t)1 << 40) power = power * 10 + (*s - '0'); /* no cell has that many digits */
        number->power += minus ? -power : power;
    }
    return s == end;
}

static int
is_infinity(const uint8_t *s, size_t n)
{
    static const char text[] = "infinity";
    if (n && (*s == '-' || *s == '+')) s++, n--;
    if (n != 3 && n != 8) return 0;
    for (size_t i = 0; i < n; i++)
        if ((s[i] | 32) != text[i]) return 0;
    return 1;
}

#endif
