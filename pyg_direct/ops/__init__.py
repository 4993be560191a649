"""Operations on large arrays, implemented once for each kind of device."""
