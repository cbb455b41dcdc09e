/* math_double: exp, log, sine and cosine in double by fixed steps, because libm's last bit differs from
 * version to version and a rope angle or a draw must not. Plain IEEE operations, no contraction: the same
 * bits on every machine. About 1e-15 relative for the arguments used here; not a replacement of libm. */
#include "kern/kern.h"

#include <math.h>
#include <string.h>

static const double LN2_HI = 0x1.62e42fefa39efp-1, LN2_LO = 0x1.abc9e3b39803fp-56;

/* Round to the nearest integer, ties to even, for |x| < 2^51. */
static double nearest(double x) {
    const double magic = 0x1.8p52;
    return (x + magic) - magic;
}

double ig_math_exp(double x) {
    if (x != x) return x;
    if (x > 709.0) return (double)INFINITY;
    if (x < -708.0) return 0.0;
    double n = nearest(x * 0x1.71547652b82fep0); /* 1 / ln 2 */
    double r = (x - n * 0x1.62e42fee00000p-1) -
               n * 0x1.a39ef35793c76p-33; /* ln 2 cut after 32 bits: n * high is exact */
    double p = 1.0;
    for (int k = 17; k >= 1; k--) p = 1.0 + p * r / (double)k; /* Taylor, |r| < 0.35 */
    uint64_t bits = (uint64_t)((int64_t)n + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, 8);
    return p * scale;
}

double ig_math_log(double x) {
    if (x != x || x < 0.0) return (double)NAN;
    if (x == 0.0) return (double)-INFINITY;
    if (x > 1.7976931348623157e308) return x;
    double e = 0.0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        e = -54.0;
    }
    uint64_t bits;
    memcpy(&bits, &x, 8);
    e += (double)((int64_t)(bits >> 52) - 1023);
    bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &bits, 8);
    if (m > 0x1.6a09e667f3bcdp0) { /* sqrt 2: keep m near 1 */
        m *= 0.5;
        e += 1.0;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0.0; /* log m = 2 artanh s, |s| < 0.172 */
    for (int k = 23; k >= 1; k -= 2) p = p * z + 1.0 / (double)k;
    return e * LN2_HI + (2.0 * s * p + e * LN2_LO);
}

/* |x| < 2^30. Reduction by pi/2 in three parts (33 bits each, so n * part is exact), then Taylor. */
void ig_math_sincos(double x, double *s, double *c) {
    double n = nearest(x * 0x1.45f306dc9c883p-1); /* 2 / pi */
    double r = x - n * 0x1.921fb54400000p+0;
    r = r - n * 0x1.0b4611a600000p-34;
    r = r - n * 0x1.3198a2e037073p-69;
    double z = r * r, ps = 1.0, pc = 1.0;
    for (int k = 20; k >= 2; k -= 2) {
        ps = 1.0 - ps * z / (double)(k * (k + 1));
        pc = 1.0 - pc * z / (double)(k * (k - 1));
    }
    ps = ps * r;
    switch ((int64_t)n & 3) {
    case 0: *s = ps, *c = pc; break;
    case 1: *s = pc, *c = -ps; break;
    case 2: *s = -ps, *c = -pc; break;
    default: *s = -pc, *c = ps; break;
    }
}
