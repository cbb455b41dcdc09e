/* loop_matmul: the product of f32 matrices that training is made of, one element after the other: the
 * definition. Fast tiles are in tuned/. */
#include "kern/simd.h"

static void matmul(const ig_matmul_args *a) {
    for (int i = 0; i < a->m; i++)
        for (int j = 0; j < a->n; j++) {
            float *c = a->c + (size_t)i * a->c_row + (size_t)j, acc = a->add ? *c : 0.0f;
            for (int k = 0; k < a->kk; k++)
                acc = __builtin_fmaf(a->a[(size_t)i * a->a_row + (size_t)k * a->a_k],
                                     a->b[(size_t)k * a->b_row + (size_t)j], acc);
            *c = acc;
        }
}

static const ig_kern kerns[] = {
    {IG_KERN_MATMUL,
     NULL,
     IG_TIER_L3,
     SIMD_NEEDS,
     SIMD_SPEED,
     KERN_NAME("matmul"),
     "equals scalar",
     {.matmul = matmul}},
};
KERN_EXPORT(loop_matmul, kerns);
