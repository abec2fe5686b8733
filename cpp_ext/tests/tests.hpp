// The native core's tests: a plain program, so that sanitizers see all of it.
#pragma once

#include <cstdio>
#include <cstdlib>

// Unlike assert, checked in every build.
#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                        \
        }                                                                        \
    } while (false)

void test_core();
void test_json();
void test_min_cut();
void test_model();
void test_parallel();
void test_policy();
