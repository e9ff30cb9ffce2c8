/* Charging the job for what this process takes, and saying why not. Devices are the
 * region's indexes. */
#ifndef RATION_ACCOUNT_H
#define RATION_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

/* account_charge asks the job for bytes before the driver is asked: CUDA_SUCCESS,
 * or what the call must return. Whoever calls it with a lock held says so. */
int account_charge(unsigned device, unsigned kind, uint64_t bytes, bool locked);

/* account_tight says whether a request would be refused as things stand. */
bool account_tight(unsigned device, uint64_t bytes);

/* account_book charges what exists already, whether it fits or not. */
void account_book(unsigned device, unsigned kind, uint64_t bytes);

/* account_return gives back what was charged or booked. */
void account_return(unsigned device, unsigned kind, uint64_t bytes);

/* account_adjust goes from one charge to another, by a booking if need be. */
void account_adjust(unsigned device, unsigned kind, uint64_t from, uint64_t to);

/* account_held is what this process holds by our count. */
uint64_t account_held(unsigned device, unsigned kind);
uint64_t account_held_all(unsigned device);

/* account_may_lack says of bytes that are charged, from now on or no longer, that the
 * driver need not have them: managed memory may be elsewhere. account_absent is the
 * sum. */
void account_may_lack(unsigned device, uint64_t bytes, bool from_now);
uint64_t account_absent(unsigned device);

/* account_forget starts at nothing, in a process that has just joined. */
void account_forget(void);

#endif
