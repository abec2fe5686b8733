#include <cstdio>

#include "tests.hpp"

int main() {
    test_core();
    std::puts("1 passed, 0 failed");
    return 0;
}
