/* Two threads of different real-time priorities on one CPU: the higher one interrupts the
 * lower one in the middle of a call, where the program's own version of something that the
 * library calls there lets it. */
#ifndef RATION_TEST_REALTIME_H
#define RATION_TEST_REALTIME_H

#include <sched.h>
#include <semaphore.h>

#include "stranger.h"

enum { LOW = 10, HIGH = 20 };

static sem_t go; /* the higher one waits for it */
static uint32_t interrupted;
static _Thread_local bool is_low;

/* To be called in the middle: the higher thread runs until it waits. */
static inline void interrupt_low(void)
{
	if (!is_low)
		return;
	__atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
	sem_post(&go);
}

/* realtime_begin starts a task with a priority on a CPU of its own choice. */
static inline bool realtime_begin(struct task *t, CUcontext c, int priority, int cpu)
{
	pthread_attr_t a;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	t->context = c;
	pthread_attr_init(&a);
	pthread_attr_setinheritsched(&a, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&a, SCHED_FIFO);
	pthread_attr_setschedparam(&a, &(struct sched_param){.sched_priority = priority});
	pthread_attr_setaffinity_np(&a, sizeof set, &set);
	return pthread_create(&t->thread, &a, task_thread, t) == 0;
}

/* Runs both to their ends. False where threads may not have such a priority. */
static inline bool realtime_run(struct task *low, struct task *high, CUcontext c)
{
	cpu_set_t allowed;
	int cpu = 0;
	sem_init(&go, 0, 0);
	EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
	while (!CPU_ISSET(cpu, &allowed))
		cpu++;
	if (!realtime_begin(high, c, HIGH, cpu)) {
		fprintf(stderr, "skipped, as threads may not have a real-time priority here\n");
		return false;
	}
	CHECK(realtime_begin(low, c, LOW, cpu));
	JOIN(high);
	JOIN(low);
	OK(high->result);
	OK(low->result);
	CHECK(interrupted > 0); /* or nothing was tried */
	return true;
}

#endif
