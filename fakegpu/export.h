/* What the driver's libraries export; all else is hidden. */
#ifndef FAKEGPU_EXPORT_H
#define FAKEGPU_EXPORT_H

#define EXPORT __attribute__((visibility("default")))

#endif
