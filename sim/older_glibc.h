/*
 * Included before everything else in libraries that containers load. From glibc 2.38 on, its headers use
 * other functions for sscanf and similar ones, which differ only in binary literals and are in no older
 * glibc. The old ones still exist.
 */
#pragma once

#if defined(__x86_64__)
#define SIM_OLDEST "GLIBC_2.2.5"
#define SIM_OLDEST_SCANF "GLIBC_2.7"
#elif defined(__aarch64__)
#define SIM_OLDEST "GLIBC_2.17"
#define SIM_OLDEST_SCANF "GLIBC_2.17"
#endif

#ifdef SIM_OLDEST
__asm__(".symver __isoc23_sscanf, __isoc99_sscanf@" SIM_OLDEST_SCANF);
__asm__(".symver __isoc23_strtol, strtol@" SIM_OLDEST);
__asm__(".symver __isoc23_strtoul, strtoul@" SIM_OLDEST);
__asm__(".symver __isoc23_strtoull, strtoull@" SIM_OLDEST);
/* In libc from glibc 2.34 on, which has the old version as well. */
__asm__(".symver pthread_create, pthread_create@" SIM_OLDEST);
#endif
