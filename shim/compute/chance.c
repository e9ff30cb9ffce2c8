#include "compute/chance.h"

#include "clock.h"

enum { CHANCE_LAUNCHES = 16384 }; /* the most launches that the mean is taken over */

void chance_learn(struct chance *c, double ns, uint32_t stands)
{
	c->launches = c->launches + stands < CHANCE_LAUNCHES ? c->launches + stands : CHANCE_LAUNCHES;
	c->ns += (ns - c->ns) * stands / c->launches;
}

/* The logarithm of a random number has the wanted distribution. */
uint64_t chance_draw(uint64_t mean)
{
	static __thread uint64_t random __attribute__((tls_model("initial-exec")));
	if (!random)
		random = (clock_exact() ^ (uintptr_t)&random) | 1;
	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	unsigned zeros = (unsigned)__builtin_clzll(random);
	/* log2 is in units of 2^-32; its mean is 1.5. */
	uint64_t log2 = ((uint64_t)(zeros + 1) << 32) - (random << zeros << 1 >> 32), n = log2 / 3 * mean * 2 >> 32;
	return n < 2 * mean ? n : 2 * mean;
}
