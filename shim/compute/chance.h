/* Launches that are measured by chance, and what the others are taken for. */
#ifndef RATION_CHANCE_H
#define RATION_CHANCE_H

#include <stdint.h>

/* What a stream's launches take, by those of them that were chosen. With the meter's mark. */
struct chance {
	double ns;         /* for each */
	uint32_t launches; /* that the chosen ones stand for, but for more than count; 0: nothing is known */
};

/* chance_learn is told what a launch took that was chosen, and how many it was chosen from. */
void chance_learn(struct chance *c, double ns, uint32_t stands);

/* chance_draw returns how many launches come before one that is measured by chance: so many in the mean, and twice that
 * at most. What came before says nothing of it. */
uint64_t chance_draw(uint64_t mean);

#endif
