/* Charging the job for what this process takes, and saying why not. Devices are the
 * region's indexes. */
#ifndef RATION_ACCOUNT_H
#define RATION_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

/* charge_add asks the job for bytes before the driver is asked: CUDA_SUCCESS,
 * or what the call must return. Whoever calls it with a lock held says so. */
int charge_add(unsigned device, unsigned kind, uint64_t bytes, bool locked);

/* charge_would_refuse says whether a request would be refused as things stand. */
bool charge_would_refuse(unsigned device, uint64_t bytes);

/* charge_add_forced charges what exists already, whether it fits or not. */
void charge_add_forced(unsigned device, unsigned kind, uint64_t bytes);

/* charge_return gives back what was charged or booked. */
void charge_return(unsigned device, unsigned kind, uint64_t bytes);

/* charge_adjust goes from one charge to another, by a booking if need be. */
void charge_adjust(unsigned device, unsigned kind, uint64_t from, uint64_t to);

/* charge_held is what this process holds by our count. */
uint64_t charge_held(unsigned device, unsigned kind);
uint64_t charge_held_total(unsigned device);

/* charge_mark_absent says of bytes that are charged, from now on or no longer, that the
 * driver need not have them: managed memory may be elsewhere. charge_absent is the
 * sum. */
void charge_mark_absent(unsigned device, uint64_t bytes, bool from_now);
uint64_t charge_absent(unsigned device);

/* charge_reset starts at nothing, in a process that has just joined. */
void charge_reset(void);

#endif
