/*
 * Included before everything else. It names the oldest version of each libc function with several, so that
 * the interposers load in images as old as CentOS 7 (glibc 2.17) and Ubuntu 18.04.
 * tests/interposer/test_symbols.py checks the result.
 */
#pragma once

#if defined(__x86_64__)
#define XPU_OLDEST "GLIBC_2.2.5"
#define XPU_OLDEST_SCANF "GLIBC_2.7"
#elif defined(__aarch64__)
#define XPU_OLDEST "GLIBC_2.17"
#define XPU_OLDEST_SCANF "GLIBC_2.17"
#else
#error "no interposer library for this machine"
#endif

/* In libc since glibc 2.34 (pthread_sigmask: 2.32), in libdl and libpthread before. */
__asm__(".symver dlopen, dlopen@" XPU_OLDEST);
__asm__(".symver dlsym, dlsym@" XPU_OLDEST);
__asm__(".symver dlclose, dlclose@" XPU_OLDEST);
__asm__(".symver pthread_create, pthread_create@" XPU_OLDEST);
__asm__(".symver pthread_attr_setstacksize, pthread_attr_setstacksize@" XPU_OLDEST);
__asm__(".symver pthread_sigmask, pthread_sigmask@" XPU_OLDEST);
__asm__(".symver pthread_key_create, pthread_key_create@" XPU_OLDEST);
__asm__(".symver pthread_once, pthread_once@" XPU_OLDEST);
__asm__(".symver pthread_setspecific, pthread_setspecific@" XPU_OLDEST);

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* The headers of glibc 2.38 and newer use these for sscanf and similar functions. They differ only in binary
 * literals. */
__asm__(".symver __isoc23_sscanf, __isoc99_sscanf@" XPU_OLDEST_SCANF);
__asm__(".symver __isoc23_strtol, strtol@" XPU_OLDEST);
__asm__(".symver __isoc23_strtoul, strtoul@" XPU_OLDEST);
__asm__(".symver __isoc23_strtoull, strtoull@" XPU_OLDEST);
#endif
